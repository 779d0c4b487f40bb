"""`esa find`: passages without an answer, by words without a model, by a finder's index with it.
Tiny random model, and an untrained finder of it."""

from __future__ import annotations

import json
import os
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from command import TINY, Esa, Result, fail

from esa_cli.apps.cli.commands import find_command
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.documents.document import Document
from esa_cli.errors import PresetError, UsageError
from esa_cli.models.files.model_reference import ModelRef
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.presets.preset_files import locate_finder
from esa_cli.storage.library import Library

BOAT = "A grey boat lies at the pier, and nobody knows whose it is. " * 25
KEY = "Captain Ahab has the only key of the [red]northern[/red] gate :smile:. "
GATE = f"{BOAT}\n\n{KEY}\n\n{BOAT}"
WORDS = "Ahab's northern gates"


@pytest.fixture
def run(
    surroundings: None, esa: Esa, finder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Esa:
    """`esa` with a preset that has a finder and lacks its adapter, in a folder of its own."""
    monkeypatch.setenv("ESA_LIBRARY", str(tmp_path / "library"))
    Path("gate.txt").write_text(GATE, "utf-8")
    Path("boat.txt").write_text(BOAT, "utf-8")
    settings = ("answer.from=text", f"answer.finder={finder}", "answer.adapter=none")
    given = [word for setting in settings for word in ("--set", setting)]

    def call(*arguments: str) -> Result:
        options = (*TINY, *given) if arguments[0] in ("find", "ingest") else ()
        return esa(arguments[0], *options, *arguments[1:])

    return call


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the model nor its small files are opened."""
    for place in ("model_and_documents.open_model", "model_and_documents.check_before_loading"):
        monkeypatch.setattr(f"esa_cli.apps.cli.{place}", lambda *given, **more: pytest.fail("used"))


@pytest.mark.usefixtures("no_model")
def test_an_unread_document_is_searched_by_words_without_a_model(run: Esa) -> None:
    done = run("find", "gate.txt", WORDS)
    assert done.code == 0, done.err
    first = done.out.split("\n\n", 1)[0].splitlines()
    detailed = run("find", "gate.txt", WORDS, "-v").out.splitlines()[0]
    head = re.fullmatch(
        r"gate\.txt:(\d+)  characters (\d+)-(\d+), probability (\d\.\d\d)", detailed
    )
    assert head
    line, start, end = map(int, head.groups()[:3])
    assert KEY.strip() in GATE[start:end]
    assert line == GATE.count("\n", 0, GATE.index(KEY.strip())) + 1
    assert first[0] == f"gate.txt:{line}  probability {head[4]}"
    heads = re.findall(r"^gate\.txt:.*$", done.out, re.MULTILINE)
    assert len(heads) > 1
    assert not any("probability 0.00" in head or "characters" in head for head in heads)
    assert all(line.startswith("  ") or not line for line in first[1:])
    assert KEY.strip() in done.out
    assert "\x1b" not in done.out
    said = "esa: not read, searched with BM25 alone: gate.txt; --read first reads it"
    assert done.err.splitlines() == [said]
    assert run("find", "gate.txt", WORDS, "-q").err == ""
    assert not Path("library").exists()


@pytest.mark.usefixtures("no_model")
def test_a_row_of_a_table_has_its_place(run: Esa, tmp_path: Path) -> None:
    Path("data").mkdir()
    Path("data/orders.csv").write_text("order,item\n11,ropes\n12,lanterns\n", "utf-8")
    for path in ("data/orders.csv", str(tmp_path / "data/orders.csv")):
        done = run("find", path, "lanterns")
        assert done.out.startswith(f"{path}, row 3  probability "), done.out


@pytest.mark.parametrize("shows_all", [False, True])
def test_a_passage_whose_best_sentences_were_printed_is_not(
    shows_all: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ["It rains.", "Ahab has a gate.", "He sleeps.", "Ahab has a gate.", "Gates rust.", "So."]
    text, document = " ".join(said), Document("a.txt", " ".join(said), "a.txt", "utf-8", 9)
    starts = [sum(len(one) + 1 for one in said[:at]) for at in range(len(said) + 1)]
    windows = [(0, 2), (1, 3), (2, 4), (4, 6), (0, 6), (3, 5)]
    passages = [Passage.cut_from(document, starts[a], starts[b] - 1) for a, b in windows]
    passages.append(replace(passages[1], document="b.txt"))
    find_command.print_marked_passages(passages, "Ahab's gate", True, shows_all=shows_all)
    found = re.findall(r"characters (\d+)-", capsys.readouterr().out)
    kept = range(7) if shows_all else (0, 2, 3, 6)
    assert found == [str(passages[at].start) for at in kept]
    assert text[passages[1].start :].startswith("Ahab")


@pytest.mark.usefixtures("no_model")
def test_the_json_object(run: Esa) -> None:
    data = run("find", "gate.txt", "boat.txt", WORDS, "--json", "--top", "1").data
    assert set(data) == {
        "passages", "read", "documents", "left_out", "model", "preset",
    }  # fmt: skip
    (passage,) = data["passages"]
    assert set(passage) == {
        "document", "source", "page", "line", "chapter", "title", "link", "start", "end", "text",
        "score", "probability",
    }  # fmt: skip
    assert GATE[passage["start"] : passage["end"]] == passage["text"]
    assert passage["probability"] > 0.1
    assert (data["read"], data["model"], data["preset"]) == (False, None, "tiny-random")
    assert [one["read"] for one in data["documents"]] == [False, False]


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize("where", ["files", "folder", "library"])
def test_every_place_and_every_file_with_the_word_as_grep_has_them(run: Esa, where: str) -> None:
    """Also of more files than `answer.documents`, and where the word is in nearly every passage."""
    draw = random.Random(7)
    Path("town").mkdir()
    texts = dict[str, str]()
    for number in range(12):
        share = (0, 0, 0.01, 0.2, 0.9, 1)[number % 6]
        said = [
            f"It is day {at} of the boat{', Daniel' * (draw.random() < share)}." for at in range(90)
        ]
        text = " ".join(said) + (" Daniel." if 0 < share < 0.1 else "")
        texts[f"town/{number}.txt"] = f"File {number}. {text}"
        Path(f"town/{number}.txt").write_text(texts[f"town/{number}.txt"])
    if where == "library":
        assert run("ingest", "--words", "town").code == 0
    named = {"files": sorted(texts), "folder": ["town"], "library": ["--library"]}[where]
    having = {name for name, text in texts.items() if "Daniel" in text}
    files = run("find", *named, "daniel", "--files", "-q").out.splitlines()
    assert sorted(map(os.path.relpath, files)) == sorted(having)
    found = run("find", *named, "daniel", "--all", "--json", "-q").data["passages"]
    shown = {(os.path.relpath(one["source"]), one["start"], one["end"]) for one in found}
    for name, text in texts.items():
        own = [(start, end) for source, start, end in shown if source == name]
        assert all("Daniel" in text[start:end] for start, end in own)
        for place in re.finditer("Daniel", text):
            assert any(start <= place.start() and place.end() <= end for start, end in own)


@pytest.mark.usefixtures("no_model")
def test_all_have_all_of_the_words_or_the_most_that_any_has(run: Esa) -> None:
    done = run("find", "gate.txt", "boat.txt", "the northern gates of Ahab", "--all", "--json")
    assert all(KEY.strip() in one["text"] for one in done.data["passages"])
    assert done.data["passages"]
    most = run("find", "gate.txt", "Ahab zeppelin", "--all", "--json")
    alone = run("find", "gate.txt", "Ahab", "--all", "--json").data
    assert most.data["passages"] == alone["passages"] != []
    assert "these passages have 1 of the 2 words" in most.err
    assert "probability" not in run("find", "gate.txt", "Ahab", "--all").out
    none = run("find", "gate.txt", "zeppelin", "--files")
    assert (none.code, none.out) == (1, "")


def test_a_document_in_the_library_is_found_by_its_index(run: Esa) -> None:
    assert run("ingest", "gate.txt").code == 0
    (entry,) = Library().entries()
    done = run("find", "gate.txt", "boat.txt", "zeppelin", "--json")
    assert done.code == 0, done.err
    assert "BM25 alone: boat.txt;" in done.err
    documents = [(one["name"], one["read"], one["id"]) for one in done.data["documents"]]
    assert documents == [("gate.txt", True, entry.id), ("boat.txt", False, None)]
    assert (done.data["read"], done.data["model"]) == (False, "random:llama")
    assert {one["document"] for one in done.data["passages"]} == {"gate.txt"}


def test_the_library_is_searched(run: Esa) -> None:
    fail(run("find", "--library", WORDS), 2, "the library has no documents")
    Path("disk").mkdir()
    Path("gate.txt").rename("disk/gate.txt")
    assert run("ingest", "disk/gate.txt", "--set", "answer.finder=null").code == 0
    Path("disk").rename("unmounted")
    by_words = run("find", "--library", WORDS, "--json")
    assert (by_words.data["model"], by_words.data["read"]) == (None, False)
    assert run("ingest", "boat.txt").code == 0
    both = run("find", "--library", WORDS, "--json", "--top", "2").data
    assert {one["name"]: one["read"] for one in both["documents"]} == {
        "gate.txt": False, "boat.txt": True,
    }  # fmt: skip
    assert all(os.path.isabs(one["source"]) for one in both["documents"])


def test_a_note_has_its_title_and_link_also_from_the_library(
    run: Esa, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the front matter says is found, and the library keeps title and link."""
    link = "zotero://select/library/items/ABCD2345"
    note = f"---\ntitle: On gates\naliases: [Portals]\nzotero: {link}\n---\n{GATE}\n"
    Path("gate.md").write_text(note, "utf-8")
    (first, *_) = run("find", "gate.md", WORDS).out.splitlines()
    assert first.startswith("gate.md:")
    assert f", On gates, {link}  probability " in first
    assert run("ingest", "gate.md").code == 0
    for source in ("gate.md", "--library"):
        found = run("find", source, WORDS, "--json").data["passages"][0]
        assert (found["title"], found["link"], found["chapter"]) == ("On gates", link, "On gates")
    assert run("library", "copy", "library", "one.tar").code == 0
    monkeypatch.setenv("ESA_LIBRARY", str(Path("other").absolute()))
    assert run("library", "copy", "one.tar", "library").code == 0
    assert run("find", "--library", WORDS, "--json").data["passages"][0]["link"] == link
    aliases = run("find", "gate.md", "portals", "--all", "--json").data["passages"]
    assert any("aliases: Portals;" in one["text"] for one in aliases)


def test_the_option_replaces_the_finder(finder: Path) -> None:
    for name, chosen in (("words", None), (str(finder), str(finder)), ("a/b", "a/b")):
        answer = ModelOptions("tiny-random", finder=name, settings=["answer.finder=x"])
        assert answer.load_preset().answer.finder == chosen
    worded = ModelOptions(model="Qwen/Qwen3-4B", finder="words").load_preset().answer
    assert (worded.reader, worded.finder) == ("Qwen/Qwen3-4B", None), "as with the preset's own"
    assert isinstance(locate_finder("lightonai/LateOn"), ModelRef)
    with pytest.raises(UsageError, match="needs answers from passages"):
        ModelOptions("tiny-random", finder=str(finder)).load_preset("esa")
    with pytest.raises(PresetError, match="must be a folder"):
        ModelOptions("tiny-random", finder="./nothing").load_preset()


def test_find_and_plan(esa: Esa, note: str, finder: Path) -> None:
    for name, read in (("words", ()), (str(finder), ("--read", "first"))):
        done = esa("find", note, "When?", *TINY, "--finder", name, *read, "--json")
        assert done.data["read"] is bool(read), done.err
    assert "(14 bytes a token)" in esa("plan", note, *TINY, "--finder", str(finder)).out


def test_bench_finders_counts_the_passages_found(esa: Esa, finder: Path) -> None:
    boat = "A grey boat lies at the pier, and nobody knows whose it is. " * 40
    Path("gate.txt").write_text(f"{boat}\n\nThe northern gate opens at nine.\n\n{boat}")
    row = {"question": "When does the northern gate open?", "documents": ["gate.txt"]}
    rows = [{**row, "passage": "gate opens at nine"}, {**row, "passage": "at ten"}]
    Path("asked.jsonl").write_text(json.dumps(rows[0]))
    done = esa("bench", "finders", "asked.jsonl", *TINY, "--finder", str(finder), "--json")
    words, ours = done.data["finders"]
    assert (words["finder"], words["found_1"], words["bytes"]) == ("words", 1, 0)
    assert (ours["finder"], ours["questions"]) == (str(finder), 1)
    assert ours["bytes"] > 14 * 1000
    assert "found_3" in esa("bench", "finders", "asked.jsonl", *TINY).out
    Path("asked.jsonl").write_text(json.dumps(rows[1]))
    assert (
        "no document has the passage 'at ten'" in esa("bench", "finders", "asked.jsonl", *TINY).err
    )
    assert "needs a file of questions" in esa("bench", "finders").err
