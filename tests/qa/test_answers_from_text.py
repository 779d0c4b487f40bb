"""Answers from passages that are read again as text, as `Esa` gives them. Tiny random model."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from tiny_reader import save_tiny_reader

from esa_cli import models
from esa_cli.documents.document import Document
from esa_cli.documents.readers.text_builder import Mark
from esa_cli.errors import LengthError, ModelError, PresetError, UsageError
from esa_cli.qa.answering.question_parts import join_replies
from esa_cli.qa.answering.reply import (
    NEEDS_READER,
    NOT_TOLD,
    Certainty,
    Quotation,
    Reply,
    Turn,
    says_nothing_found,
)
from esa_cli.qa.api import Esa
from esa_cli.qa.finding.passage_finder import Book
from esa_cli.qa.passage_answers import THOROUGH
from esa_cli.qa.presets.preset import HEAD, load_preset
from esa_cli.qa.reading import span
from esa_cli.qa.reading.passage_reader import collapse_spaces
from esa_cli.qa.reading.reader import Reader
from esa_cli.qa.reading.span import AnswerCombination
from esa_cli.storage.library import Library

FILLER = "A grey boat lies at the pier and nobody in the town knows whose boat it is. " * 20
GATE = "Captain Ahab opens\nthe northern gate at nine. "
STORY = FILLER + "\n\n" + GATE + "\n\n" + FILLER
QUESTION = "When does Ahab open the northern gate?"
FROM_TEXT = ["answer.from=text"]


def esa(loaded: Any, *overrides: str, base: Sequence[str] = FROM_TEXT) -> Esa:
    return Esa(loaded, load_preset("tiny-random", [*base, *overrides]))


def document(text: str, name: str = "story.txt") -> Document:
    return Document(name, text, source=name, encoding="utf-8", bytes=len(text))


@pytest.fixture
def asker(loaded: Any) -> Iterator[Esa]:
    with esa(loaded) as made:
        yield made


def book(asker: Esa, text: str, name: str = "story.txt") -> Book:
    return asker.ingest(document(text, name))


def test_the_answer_is_quoted_from_the_passage_that_is_found(asker: Esa) -> None:
    reply = asker.ask(QUESTION, [book(asker, STORY)])
    first = reply.evidence[0]
    assert collapse_spaces(GATE) in collapse_spaces(first.text)
    assert first.text == STORY[first.start : first.end]
    assert reply.quotation is not None
    place = reply.quotation
    assert first.line == STORY[: place.start].count("\n") + 1
    assert collapse_spaces(STORY[place.start : place.end]) == reply.text
    assert first.start <= place.start < place.end <= first.end
    assert (reply.found, reply.cut, reply.answered_from) == (True, False, "text")
    assert reply.answer_tokens == len(f" {reply.text}")
    assert reply.question_tokens > len(QUESTION)
    assert asker.ask(QUESTION, [book(asker, STORY)]).text == reply.text


def test_each_part_of_a_question_is_answered(asker: Esa) -> None:
    story = f"{STORY}\n\nStarbuck keeps the logbook in the blue drawer.\n\n{FILLER}"
    one, pieces = book(asker, story), list[str]()
    who, where = "Who opens the northern gate?", "where is the logbook?"
    first = asker.ask(who, one)
    second = asker.ask(where, one, history=[Turn(who, who)])
    reply = asker.ask(f"{who[:-1]}, and {where}", one, on_text=pieces.append)
    assert reply.text == f"{first.text}; {second.text}"
    assert reply.quotations == (first.quotation, second.quotation)
    assert pieces == [reply.text_with_certainty]
    heads = [first.evidence[0], second.evidence[0]]
    assert {one.start for one in heads} <= {one.start for one in reply.evidence[:2]}
    assert all(f"<mark>{part.text}" in reply._repr_html_() for part in (first, second))
    shown = asker.heat_maps()[0].spans
    assert any(at.start < head.end and head.start < at.end for at in shown for head in heads)


@pytest.mark.parametrize(
    ("certainties", "joined"),
    [
        (("answer", "answer"), ("answer", "Ann; Bob")),
        (("answer", "perhaps"), ("perhaps", "Ann; Bob")),
        (("answer", "nothing"), ("perhaps", 'Ann; nothing found that answers "Who is old?"')),
        (("nothing", "perhaps"), ("perhaps", 'Bob; nothing found that answers "Who is young?"')),
        (("nothing", "nothing"), ("nothing", "Ann")),
    ],
)
def test_parts_are_as_certain_as_the_least_certain(
    certainties: tuple[Certainty, Certainty], joined: tuple[str, str]
) -> None:
    replies = [
        Reply(
            text, certainty=certainty, quotations=(Quotation("a.txt", n, n + 3),), names=("Ennick",)
        )
        for n, (text, certainty) in enumerate(zip(("Ann", "Bob"), certainties, strict=True))
    ]
    reply = join_replies(["Who is young?", "Who is old?"], replies, 3)
    assert (reply.certainty, reply.text) == joined
    assert says_nothing_found(reply.text) is False
    assert bool(reply.names) == (joined[0] == "nothing"), "an answer is in the passages"


def test_parts_with_the_same_answer_give_it_once() -> None:
    replies = [Reply("Ann", certainty="answer", quotations=(Quotation("a.txt", 0, 3),))] * 2
    assert join_replies(["Who wrote it?", "Who signed it?"], replies, 3).text == "Ann"


def test_a_thorough_answer_is_that_of_more_passages(loaded: Any, tmp_path: Path) -> None:
    save_tiny_reader(loaded.model, tmp_path)
    text = " ".join(f"Boat {n} lies at the pier, and Ahab knows whose it is." for n in range(400))
    own = f"answer.adapter={tmp_path}"
    calls: list[tuple[int, int]] = []
    with esa(loaded, own, f"answer.passages={THOROUGH}") as asker:
        whole = asker.ask(QUESTION, [book(asker, text)], evidence=99)
    with esa(loaded, own, "answer.passages=3") as asker:
        how = {"thorough": True, "progress": lambda *counts: calls.append(counts)}
        told = asker.ask(QUESTION, [book(asker, text)], evidence=99, **how)
        assert len(asker.ask(QUESTION, [book(asker, text)], evidence=99).evidence) == 3
    assert (calls[0], calls[-1]) == ((0, THOROUGH), (THOROUGH, THOROUGH))
    assert len(told.evidence) == THOROUGH
    assert (told.text, told.evidence) == (whole.text, whole.evidence)
    with esa(loaded, base=()) as rows, pytest.raises(UsageError, match="thorough"):
        rows.ask(QUESTION, [book(rows, STORY)], thorough=True)


def test_the_place_is_that_of_the_quotation(asker: Esa) -> None:
    text = f"{FILLER}\n\nBoats\n\nAhab has three.\nHe owns them. Gates\n\n{GATE}"
    marks = (Mark(0, 1, "Piers"), Mark(text.index("Boats"), 2, "Boats"))
    marks += (Mark(text.index("Gates"), 3, "Gates"),)
    one = asker.ingest(replace(document(text), marks=marks))
    reply = asker.ask(QUESTION, [one], evidence=99)
    at = reply.quotation
    for passage in reply.evidence:
        start = at.start if passage.start <= at.start < passage.end else passage.start
        mark = next(mark for mark in reversed(marks) if mark.start <= start)
        wanted = mark.page, mark.chapter, text.count("\n", 0, start) + 1
        assert (passage.page, passage.chapter, passage.line) == wanted
    assert reply.evidence[0].chapter == "Gates"
    assert one.document.place(reply.evidence[0].start).chapter != "Gates"


def test_which_of_several_documents(asker: Esa) -> None:
    texts = [FILLER, "", STORY, "Starbuck sleeps."]
    books = [book(asker, text, f"{n}.txt") for n, text in enumerate(texts)]
    reply = asker.ask(QUESTION, books)
    assert reply.evidence[0].document == "2.txt"
    assert reply.quotation.document == "2.txt"
    assert collapse_spaces(STORY[reply.quotation.start : reply.quotation.end]) == reply.text
    assert asker.ask("Who is Starbuck?", books).evidence[0].document == "3.txt"
    assert "<html" in asker.report(asker.ask(QUESTION, books), QUESTION)


@pytest.mark.parametrize("text", ["Ahab.", "x", "門在九點開。", "1950", "a " * 900, "y" * 1500])
@pytest.mark.parametrize("question", [QUESTION, "?!", "門?"])
def test_texts_and_questions_of_every_kind(loaded: Any, text: str, question: str) -> None:
    with esa(loaded) as asker:
        reply = asker.ask(question, [book(asker, text)])
    assert reply.text
    if reply.quotation is not None:
        assert collapse_spaces(text[reply.quotation.start : reply.quotation.end]) == reply.text
    else:
        assert reply.text == NOT_TOLD


@pytest.mark.parametrize("text", ["", "\n\n ", "...", "--- ?! ---\n\n***"])
@pytest.mark.parametrize("question", [QUESTION, "Summarise it."])
def test_texts_without_words_do_not_say(asker: Esa, text: str, question: str) -> None:
    reply = asker.ask(question, [book(asker, text)], max_new_tokens=4)
    assert not reply.found
    assert not reply.quotation
    if question == QUESTION or not text.strip():
        assert (reply.text, reply.answer_tokens) == (NOT_TOLD, 0)


def decide(combination: AnswerCombination, probability: float) -> Certainty:
    return "nothing" if probability < 1e-9 else "perhaps"


def test_a_name_that_no_document_mentions_costs_log_odds_and_vetoes_nothing(
    loaded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = "What did Elizabeth Bennet keep?"
    monkeypatch.setattr(AnswerCombination, "get_certainty", decide)
    with esa(loaded) as asker:
        assert asker.ask(asked, [book(asker, STORY)]).found
        monkeypatch.setattr(span, "UNMENTIONED", 1e6)
        assert not asker.ask(asked, [book(asker, STORY)]).found
        assert asker.ask(QUESTION, [book(asker, STORY)]).found
        assert asker.ask("What did the CEO of the USA keep?", [book(asker, STORY)]).found


@pytest.mark.parametrize("certainty", ["answer", "perhaps", "nothing"])
def test_an_answer_is_as_certain_as_its_probability(
    loaded: Any, certainty: Certainty, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AnswerCombination, "get_certainty", lambda *given: certainty)
    with esa(loaded) as asker:
        pieces: list[str] = []
        reply = asker.ask(QUESTION, [book(asker, STORY)], on_text=pieces.append)
    found = certainty != "nothing"
    assert (reply.certainty, reply.found, reply.text == NOT_TOLD) == (certainty, found, not found)
    assert "".join(pieces) == f"{'perhaps: ' if certainty == 'perhaps' else ''}{reply.text}"
    assert reply.to_json()["certainty"] == certainty
    assert len(reply.evidence) == 3
    assert not reply.doubtful
    said = "" if found else 'The passages name "Ahab"; none answers.'
    assert reply.describe_missing_words() == said


def test_a_question_is_also_asked_after_the_one_before(
    asker: Esa, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best of three readings is the answer, unless it repeats the answer before; a certain
    answer to the question alone is kept."""
    text = FILLER + GATE + FILLER + "Starbuck sleeps in the northern mill. " + FILLER
    books = [book(asker, text)]
    first, second, said = "Is the northern gate opened?", "Opened by whom?", "Yes."
    history = [Turn(first, said)]
    alone, both = asker.ask(second, books), asker.ask(f"{first} {second}", books, evidence=50)
    reply = asker.ask(second, books, history=history, evidence=50)
    places = [(one.document, one.start) for one in reply.evidence]
    assert len(set(places)) == len(places)
    assert {(one.document, one.start) for one in both.evidence} <= set(places)
    asked = list[str]()
    rank = asker.spans.rank_passages if asker.spans else None

    def note(question: str, *more: Any) -> Any:
        asked.append(question)
        return rank(question, *more)

    monkeypatch.setattr(asker.spans, "rank_passages", note)
    asker.ask(second, books, history=history)
    assert asked == [second, second, f"{first} {second}"]
    asker.ask(second, books, history=[Turn(first, "")])
    assert asked[3:] == [second]
    always = asker.spans.combination._replace(answer=0.0)
    monkeypatch.setattr(asker.spans, "combination", always)
    certain = asker.ask(second, books, history=history)
    assert (asked[4:], certain.text) == ([second], alone.text)
    asker.ask("By whom?", books, history=history)
    assert asked[5:] == ["By whom?", f"{first} By whom?"], "alone it has no content word"
    asker.ask("By whom?", books)
    assert asked[7:] == ["By whom?"]


def test_more_than_a_quotation_needs_a_reader(loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the head says so; here all questions are requests."""
    monkeypatch.setattr(span, "REQUEST", -math.inf)
    for form, answered in (("auto", False), ("span", True)):
        with esa(loaded, f"answer.form={form}") as asker:
            reply = asker.ask("Summarise what Ahab does.", [book(asker, STORY)])
        assert (reply.quotation is not None, reply.found) == (answered, answered)
        assert (reply.text == NEEDS_READER) is not answered
        assert not reply.doubtful
        assert "Ahab" in reply.evidence[0].text


def test_a_reply_has_the_passages_that_another_model_cites(loaded: Any) -> None:
    """As many at least as were asked for, but none if none were, and none for a wrong number."""

    class CitingReader(Reader):
        name, window_tokens = "citing", 9999

        def answer(self, *_: Any) -> Reply:
            return Reply("At nine [2, 5]; see [99].")

    with esa(loaded, "answer.passages=8") as asker:
        books = [book(asker, STORY)]
        asker.reader = CitingReader()
        found = [asker.ask(QUESTION, books, evidence=count).evidence for count in (8, 0, 1, 6)]
    assert [len(one) for one in found] == [8, 0, 5, 6]
    assert found[2] == found[0][:5]


@pytest.mark.parametrize("question", [QUESTION, "Summarise it."])
def test_what_on_text_raises_passes_and_the_asker_goes_on(asker: Esa, question: str) -> None:
    books = [book(asker, STORY)]
    want = asker.ask(question, books, max_new_tokens=5)

    def fail(text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asker.ask(question, books, max_new_tokens=5, on_text=fail)
    again = asker.ask(question, books, max_new_tokens=5)
    assert (again.text, again.evidence) == (want.text, want.evidence)


def test_languages_for_which_the_default_was_not_trained_are_named(asker: Esa) -> None:
    spanish = "El marinero abre la puerta del norte a las nueve, y no sabe de quién es el barco. "
    chinese = "船长九点打开北门。" * 9
    languages = {STORY: (), spanish * 9: ("Spanish",), chinese: ("a script without spaces",)}
    for text, wanted in languages.items():
        assert asker.ask("Ahab?", [book(asker, text)]).foreign_languages == wanted
    german = "Der Kessel kommt am Montag, und das Tor ist nicht offen. " * 9
    both = [book(asker, STORY), book(asker, german, "kessel.txt")]
    english = asker.ask(QUESTION, both)
    assert english.quotation.document == "story.txt"
    assert (english.foreign_languages, english.describe_foreign_languages()) == ((), "")
    reply = replace(english, quotations=(), foreign_languages=("German",))
    assert reply.describe_foreign_languages().startswith("There are passages in German;")
    assert "`esa models suggest` names one" in reply.describe_foreign_languages()
    assert not replace(reply, certainty=None).describe_foreign_languages(), "a --reader wrote it"
    assert reply.to_json()["foreign_languages"] == ["German"]


def test_what_cannot_be_asked(asker: Esa) -> None:
    books = [book(asker, STORY)]
    with pytest.raises(UsageError, match="no document"):
        asker.ask(QUESTION, [])
    with pytest.raises(UsageError, match="the question must not be empty"):
        asker.ask(" \n", books)
    with pytest.raises(UsageError, match="temperature must"):
        asker.ask(QUESTION, books, temperature=-1)
    with pytest.raises(UsageError, match="max_new_tokens must"):
        asker.ask(QUESTION, books, max_new_tokens=0)
    with pytest.raises(LengthError, match="the model's window has 512"):
        asker.ask("Who " * 80, books)
    assert asker.ask(QUESTION, books, max_new_tokens=400).quotation


def test_the_adapter_reads(loaded: Any, tmp_path: Path) -> None:
    folder = Path(save_tiny_reader(loaded.model, tmp_path / "adapter"))
    replies = []
    weights = [1.0, 0.5, 0.25, 0.0]
    facts = {"weights": weights, "bm25_weights": weights, "answer": 0.0, "perhaps": 0.0}
    (folder / "combination.json").write_text(json.dumps(facts), "utf-8")
    for more in ([], [f"answer.adapter={folder}"]):
        with esa(loaded, *more, base=["answer.from=text", "answer.passages=1"]) as asker:
            books = [book(asker, text := "Ahab opens the gate at nine, he said, and sleeps.")]
            with asker.session.attachment.suspend_method():
                [reading] = asker.spans.passages.read_passages(QUESTION, [text])
            replies.append((reading, asker.ask(QUESTION, books)))
    (bare, without), (adapted, reply) = replies
    assert (bare.log_odds, without.certainty) == (0.0, "perhaps")
    assert (adapted.log_odds, reply.certainty) != (0.0, "perhaps")
    odds = 1 + 0.5 * adapted.log_odds + 0.25 * adapted.span.log_probability
    assert reply.probability == pytest.approx(1 / (1 + math.exp(-odds)), abs=1e-4)


def test_a_head_without_requests_reads(loaded: Any, tmp_path: Path) -> None:
    """As one that is not fitted to requests yet; to it no question is one."""
    folder = Path(save_tiny_reader(loaded.model, tmp_path / "adapter"))
    head = load_file(folder / HEAD)
    bare = {name: one for name, one in head.items() if not name.startswith("request")}
    save_file(bare, folder / HEAD)
    with esa(loaded, f"answer.adapter={folder}") as asker:
        [reading] = asker.spans.passages.read_passages(QUESTION, [GATE])
    assert reading.request_log_odds == -100


def test_an_adapter_that_is_missing_is_said_before_documents_are_read(
    loaded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PresetError, match=r"answer\.adapter must be a folder .* got 'none'"):
        esa(loaded, "answer.adapter=none")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "head.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match=r"adapter .* cannot be read"):
        esa(loaded, f"answer.adapter={broken}")
    with esa(loaded) as asker:  # the model is free again
        assert asker.ask(QUESTION, [book(asker, STORY)]).text
    monkeypatch.setattr(models, "load", lambda *given, **options: pytest.fail("loaded"))
    with pytest.raises(PresetError, match="got 'none'"):
        Esa.load("tiny-random", [*FROM_TEXT, "answer.adapter=none"], device="cpu")


def test_a_document_is_read_only_where_rows_are_needed_or_stored(
    loaded: Any, tmp_path: Path
) -> None:
    library = Library(tmp_path / "library")
    with Esa(loaded, load_preset("tiny-random", FROM_TEXT), library=library, keep=False) as asker:
        assert asker.ingest(document(STORY)).prefilled is None
    with Esa(loaded, load_preset("tiny-random", FROM_TEXT), library=library) as asker:
        stored = asker.ingest(document(STORY))
        assert stored.prefilled is not None
        assert stored.entry is not None
    with Esa(loaded, load_preset("tiny-random", FROM_TEXT), library=library, keep=False) as asker:
        assert asker.ingest(document(STORY)).entry.key == stored.entry.key


def test_a_method_over_the_preset_answers_from_rows(loaded: Any) -> None:
    from esa_cli.qa.presets.resolved_preset import replace_method

    made = replace_method("esa", load_preset("tiny-random", FROM_TEXT))
    with Esa(loaded, made) as asker:
        read = asker.ingest(document(STORY))
        reply = asker.ask(QUESTION, [read], max_new_tokens=3)
        assert (reply.answered_from, reply.quotation) == ("rows", None)
        with pytest.raises(UsageError, match="not been ingested"):
            asker.ask(QUESTION, [replace(read, prefilled=None)])
