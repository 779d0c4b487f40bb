"""`esa outline`, and `esa ask` about a chapter: a server of completions is the reader."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import TINY, Esa, fail
from completion_server import CompletionServer

TITLES = ["The Gate", "A Grey Boat", "The Lantern"]
LINES = (
    "The keeper of the {title} was called Ishmael, and nobody liked the wind on his long pier.\n\n"
)
TEXT = "\n\n".join(
    f"CHAPTER {n}. {title}\n\n{LINES.format(title=title) * 40}" for n, title in enumerate(TITLES, 1)
)


@pytest.fixture
def lamps(tmp_path: Path) -> str:
    path = tmp_path / "lamps.txt"
    path.write_text(TEXT, "utf-8")
    return str(path)


def test_the_chapters_are_listed(esa: Esa, lamps: str) -> None:
    _, *rows = esa("outline", lamps).out.splitlines()
    headings = [f"CHAPTER {n}. {title}" for n, title in enumerate(TITLES, 1)]
    assert [" ".join(row.split()[2:-1]) for row in rows] == headings
    sections = esa("outline", lamps, "--json").data["sections"]
    assert [TEXT[one["start"] : one["end"]].count("Ishmael") for one in sections] == [40] * 3
    for row, one in zip(rows, sections, strict=True):
        assert row.startswith(f"line {TEXT[: one['start']].count(chr(10)) + 1}  ")
        assert int(row.split()[-1]) == len(TEXT[one["start"] : one["end"]].split())


@pytest.mark.parametrize("chapter", ["2", "II", "chapter two", "A Grey Boat"])
def test_a_chapter_is_quoted_from(esa: Esa, lamps: str, chapter: str) -> None:
    result = esa("outline", lamps, chapter)
    first, *quoted = result.out.splitlines()
    assert first.startswith("CHAPTER 2. A Grey Boat begins at lamps.txt, line ")
    assert quoted
    assert all("keeper of the A Grey Boat" in one for one in quoted)


def test_mistakes(esa: Esa, lamps: str, note: str) -> None:
    fail(esa("outline", lamps, "9"), 2, "no chapter '9'")
    fail(esa("outline", lamps, "A", "Grey"), 2, "at most one chapter")
    fail(esa("outline", str(Path(lamps).parent)), 2, "is a folder or pattern with several")
    assert esa("outline", note)[:2] == (1, "")


def test_ask_with_and_without_a_reader(esa: Esa, lamps: str, completions: CompletionServer) -> None:
    asked = ["ask", lamps, "Summarise chapter 2", *TINY, "--set", "answer.from=text"]
    result = esa(*asked)
    assert result.code == 0
    assert "--reader" in result.err
    assert result.out.startswith("CHAPTER 2. A Grey Boat begins at lamps.txt, line ")
    assert "keeper of the A Grey Boat" in result.out
    assert "lamps.txt, line" not in result.err
    missing = esa(
        *asked[:2], "Summarise chapter 9", *asked[3:], "--json", "--reader", completions.url
    ).data
    assert (missing["found"], missing["certainty"], missing["evidence"]) == (False, "nothing", [])
    assert "no chapter 9 in lamps.txt; `esa outline`" in missing["answer"]
    assert missing["missing_words"] == []
    result = esa(*asked, "--reader", completions.url)
    assert (result.code, result.out) == (0, "At nine, says [1].\n")
    bodies = [one["body"]["messages"][-1]["content"] for one in completions.seen if one["body"]]
    assert len(bodies) == 1
    assert bodies[0].count("A Grey Boat") == 42  # of the place, the heading, and 40 sentences
    assert "The Gate" not in bodies[0]
    result = esa("ask", lamps, "Summarise the book", *asked[3:], "--reader", completions.url)
    bodies = [one["body"]["messages"][-1]["content"] for one in completions.seen if one["body"]][1:]
    assert len(bodies) > 2
    assert sum(one.count("Ishmael") for one in bodies) == 120
    assert bodies[-1].count("At nine, says [1].") == len(bodies) - 1
