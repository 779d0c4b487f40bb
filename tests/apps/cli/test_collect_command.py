"""`esa collect` and `esa count`. Tiny random model, and an untrained finder of it; or a library
that is replaced by places of the test's own."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from command import TINY, Esa, fail
from tiny_finder import tiny_finder

from esa_cli.qa.collecting import Collection

FILLER = "A grey boat lies at the pier and nobody in the town knows whose boat it is. " * 6
STORY = f"{FILLER}\n\nKeeper Ann has key 7. {FILLER}\n\n{FILLER}Keeper Cy has key 9.\n"
QUESTION = "Which key does a keeper have?"
ALL = ("--all", "--least", "-100")
"""A random model's log-odds say nothing: every passage tells a place."""


@pytest.fixture
def run(surroundings: None, esa: Esa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Esa:
    monkeypatch.setenv("ESA_LIBRARY", str(tmp_path / "library"))
    Path("story.txt").write_text(STORY, "utf-8")
    finder = tiny_finder(tmp_path / "finder")

    return lambda command, *more: esa(command, *TINY, *finder, *more)


def test_json_csv_and_lines_have_the_same_places(run: Esa) -> None:
    data = run("collect", "story.txt", QUESTION, *ALL, "--json", "-q").data
    assert set(data) == {
        "question", "count", "distinct", "caveat", "places", "coverage", "documents", "left_out",
        "model", "reader", "preset",
    }  # fmt: skip
    places = data["places"]
    assert data["count"] == len(places)
    assert set(data["coverage"]) == {"passages", "chosen", "read"}
    assert set(places[0]) == {
        "document", "source", "page", "line", "chapter", "title", "link", "start", "end", "text",
        "sentence", "passage", "score", "probability", "log_odds", "answer",
    }  # fmt: skip
    for one in places:
        assert STORY[one["start"] : one["end"]] == one["text"]
    lines = run("collect", "story.txt", QUESTION, *ALL, "--format", "jsonl", "-q").out
    assert [json.loads(line) for line in lines.splitlines()] == places
    out = run("collect", "story.txt", QUESTION, *ALL, "--format", "csv", "-q").out
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [int(row["start"]) for row in rows] == [one["start"] for one in places]
    assert [row["sentence"] for row in rows] == [one["sentence"] for one in places]


def test_without_a_document_the_library_is_searched(run: Esa) -> None:
    assert run("ingest", "story.txt", "-q").code == 0
    named = run("collect", "story.txt", QUESTION, *ALL, "-q").out
    assert run("collect", QUESTION, *ALL, "-q").out == named


def test_distinct_and_count(run: Esa) -> None:
    every = run("collect", "story.txt", QUESTION, *ALL, "--json", "-q").data
    data = run("collect", "story.txt", QUESTION, *ALL, "--json", "--distinct", "-q").data
    assert data["count"] == every["count"]
    assert len(data["places"]) == data["distinct"] == every["distinct"]
    done = run("collect", "--count", "story.txt", QUESTION, *ALL, "-q")
    ending = "" if every["count"] == 1 else "s"
    count = f"{every['count']} place{ending}, {every['distinct']} distinct"
    assert done.out == f"{count} ({every['caveat']})\n"
    data = run("collect", "--count", "story.txt", QUESTION, *ALL, "--json", "-q").data
    assert data["count"] == every["count"]


def test_where_nothing_fits_the_exit_code_is_one(run: Esa) -> None:
    done = run("collect", "story.txt", QUESTION, "--least", "100", "-q")
    assert (done.code, done.out, done.err) == (1, "", "")
    said = run("collect", "story.txt", QUESTION, "--least", "100").err
    assert said.splitlines()[-1].startswith("esa: no place found; a lower --least gives")
    done = run("collect", "--count", "story.txt", QUESTION, "--least", "100", "-q")
    assert (done.code, done.out[:22]) == (1, "0 places, 0 distinct (")


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ctrl-C comes when so many places have been given as the list's number says."""
    left = [10**6]
    go_on = Collection.__next__

    def counted(self: Collection) -> Any:
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        return go_on(self)

    monkeypatch.setattr(Collection, "__next__", counted)
    return left


def test_a_stopped_run_keeps_what_it_found_and_goes_on(run: Esa, stopping: list[int]) -> None:
    whole = run("collect", "story.txt", QUESTION, *ALL, "--format", "jsonl", "-q").out
    count = len(whole.splitlines())
    assert count > 1
    kept = ("--out", "found.jsonl", "-q")
    stopping[0] = 1
    done = run("collect", "story.txt", QUESTION, *ALL, *kept)
    assert done.code == 130
    assert len(done.out.splitlines()) == 2, "a table of what was found"
    assert "; the same command continues" in done.err
    stopping[0] = 10**6
    done = run("collect", "story.txt", QUESTION, *ALL, "--format", "jsonl", *kept)
    assert (done.code, done.out) == (0, whole)
    first, *rows = map(json.loads, Path("found.jsonl").read_text("utf-8").splitlines())
    assert first["collect"] == QUESTION
    assert first["documents"] == ["story.txt"]
    assert [row for row in rows if "text" in row] == [json.loads(x) for x in whole.splitlines()]
    assert rows[-1]["read"] == rows[-1]["chosen"]
    before = Path("found.jsonl").read_bytes()
    done = run("collect", "--count", "story.txt", QUESTION, *ALL, *kept)
    assert done.out.startswith(f"{count} place")
    assert Path("found.jsonl").read_bytes() == before, "nothing is read again"
    fail(run("collect", "story.txt", "Who?", *ALL, *kept), 2, "places for another question")
    fail(run("collect", "story.txt", QUESTION, "--all", *kept), 2, "other documents or settings")
    for wrong in ('{"text": "key 7"}', '{"read": null}', '{"other": 1}'):
        Path("found.jsonl").write_text(f"{json.dumps(first)}\n{wrong}\n")
        done = run("collect", "story.txt", QUESTION, *ALL, *kept)
        fail(done, 3, "row 2 of found.jsonl is incomplete", "choose another --out")
    Path("other.jsonl").write_text('{"id": 1}\n')
    done = run("collect", "story.txt", QUESTION, *ALL, "--out", "other.jsonl")
    fail(done, 2, "is not a results file that esa wrote")
    fail(run("collect", "story.txt", QUESTION, "--out", "story.txt"), 2, "--out")


def test_a_pipe_gets_one_line_with_tabs_for_each_place(run: Esa) -> None:
    places = run("collect", "story.txt", QUESTION, *ALL, "--json", "-q").data["places"]
    out = run("collect", "story.txt", QUESTION, *ALL, "-q").out
    header, *rows = (line.split("\t") for line in out.splitlines())
    assert header == ["place", "words", "sentence"]
    assert rows == [
        [f"story.txt:{one['line']}", *(" ".join(one[x].split()) for x in ("text", "sentence"))]
        for one in places
    ]
    Path("data").mkdir()
    Path("data/keys.csv").write_text("keeper,key\nAnn,7\nCy,9\n", "utf-8")
    done = run("collect", "data/keys.csv", QUESTION, *ALL)
    assert "esa: read 1 of 1 passage (100 %) again\n" in done.err
    _, *rows = done.out.splitlines()
    assert rows
    assert all(re.match(r"data/keys\.csv, row [123]\t[^\t]*\t[^\t]*$", row) for row in rows)
