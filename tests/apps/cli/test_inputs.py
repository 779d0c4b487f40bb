"""Which of the arguments of a command are documents, and which is the question."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest

from esa_cli.apps.cli.inputs import split_off_question
from esa_cli.errors import UsageError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt", "notes"):
        Path(name).write_text("The spot is black.", "utf-8")


@pytest.mark.parametrize("question", ["Who is Ahab?", "spot", "Is it 3.5 or */2?"])
def test_the_question_may_stand_anywhere(question: str) -> None:
    for names in permutations(("a.txt", "notes", question)):
        documents = [name for name in names if name != question]
        assert split_off_question(names, "ask") == (documents, question)
    assert split_off_question((question, "-"), "ask") == (["-"], question)


def test_a_pattern_or_a_misspelled_file_is_no_question() -> None:
    assert split_off_question(("*.txt", "c.md", "notes", "spot"), "find")[1] == "spot"
    assert split_off_question(("Who is Ahab?", "c.md"), "ask") == (["c.md"], "Who is Ahab?")
    for name in ("c.md", "docs/c", "*.md"):
        with pytest.raises(UsageError, match="question is missing"):
            split_off_question((name, "a.txt"), "ask")


@pytest.mark.parametrize("words", ["black spot", "who is Ahab?", "black and a spot"])
def test_words_without_quotes_are_shown_with_quotes(words: str) -> None:
    with pytest.raises(UsageError, match="needs quotes") as found:
        split_off_question(("a.txt", *words.split()), "find")
    assert found.value.hint.endswith(f'esa find a.txt "{words}"')
    with pytest.raises(UsageError, match="needs quotes"):
        split_off_question(words.split(), "ask", documents_optional=True)
    assert split_off_question(("nowhere", "spot"), "find") == (["nowhere"], "spot")
    with pytest.raises(UsageError, match="no document shelf") as found:
        split_off_question(("Who is Ahab?", "shelf"), "ask", documents_optional=True)
    assert "ESA_LIBRARY" in found.value.hint
