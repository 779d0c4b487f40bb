"""`esa selftest`, `compare` and `methods` on the command line, with a tiny random model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_cli import ROOT, TINY, Esa, cache, esa, fail, listen, note, surroundings

__all__ = ["cache", "esa", "note", "surroundings"]

SMALL = [*TINY, "--no-dense", "--quiet", "--samples", "2"]


def test_selftest_prints_tables_and_writes_what_was_asked_for(esa: Esa, tmp_path: Path) -> None:
    rows, page = tmp_path / "rows.jsonl", tmp_path / "page.html"
    methods = "preset,streaming-llm"
    arguments = ["needle", "--lens", "900,1200", "--methods", methods]
    done = esa("selftest", *arguments, *SMALL, "--out", str(rows), "--report", str(page))
    assert done.code == 0, done.err
    assert "streaming-llm" in done.out
    assert "1.2k" in done.out
    lines = [json.loads(line) for line in rows.read_text("utf-8").splitlines()]
    header, asked = lines[0], lines[1:]
    assert header["model"] == "random:llama"
    assert {(row["method"], row["length"]) for row in asked} == {
        (method, length) for method in methods.split(",") for length in (900, 1200)
    }
    assert len(asked) == 8
    html = page.read_text("utf-8")
    assert "streaming-llm" in html
    assert "http" not in html.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")


def test_selftest_json(esa: Esa) -> None:
    done = esa("selftest", "passkey", "--len", "900", *SMALL, "--json")
    data = json.loads(done.out)
    assert len(data["rows"]) == 2
    assert data["settings"]["reading"] == "shared"


@pytest.mark.parametrize("test", ["needle", "needles", "stars", "passkey", "number", "kv", "niah"])
def test_every_test_runs_in_both_forms(esa: Esa, test: str) -> None:
    """A random model scores nothing; what is checked is that it is asked and scored at all."""
    for form in ([], ["--exact"]):
        done = esa("selftest", test, "--len", "3k", *SMALL, "--json", *form)
        assert done.code == 0, done.err
        rows = json.loads(done.out)["rows"]
        assert rows
        assert all(0 <= row["score"] <= 1 for row in rows)
        assert all(row["recall"] is None or len(row["recall"]["layers"]) == 2 for row in rows)


def test_own_text(esa: Esa, tmp_path: Path) -> None:
    text = tmp_path / "mine.txt"
    sentences = [f"In year {n} the mill ground {n * 7} sacks of rye." for n in range(1, 90)]
    text.write_text("\n\n".join(" ".join(sentences[i : i + 5]) for i in range(0, 89, 5)), "utf-8")
    done = esa("selftest", "own", "--haystack", str(text), *SMALL, "--json")
    assert done.code == 0, done.err
    rows = json.loads(done.out)["rows"]
    assert len(rows) == 2
    fail(esa("selftest", "own", *SMALL), 2, "--haystack")


def test_mistakes_are_named_before_the_model_is_loaded(
    esa: Esa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("esa_cli.models.load", refuse)
    fail(esa("selftest", "needel", *SMALL), 2, "needle")
    fail(esa("selftest", "needle", "--methods", "infllmm", *SMALL), 2, "infllm")
    fail(esa("selftest", "needle", "--len", "much", *SMALL), 2, "no number of tokens")
    fail(esa("selftest", "needle", "--len", "1k", "--lens", "2k", *SMALL), 2, "--lens")
    fail(esa("selftest", "needle", "--depths", "deep", *SMALL), 2, "no depths")
    fail(esa("selftest", "needle", "--haystack", str(tmp_path / "no.txt"), *SMALL), 3, "no.txt")
    lost = str(tmp_path / "nowhere" / "page.html")
    fail(esa("selftest", "needle", "--report", lost, *SMALL), 2, "nowhere")


def test_a_file_of_other_settings_is_not_continued(esa: Esa, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    arguments = ["selftest", "needle", "--len", "900", *SMALL, "--out", str(rows)]
    assert esa(*arguments).code == 0
    before = rows.read_bytes()
    assert esa(*arguments).code == 0
    assert rows.read_bytes() == before
    fail(esa(*arguments, "--seed", "1"), 2, "another settings")
    assert rows.read_bytes() == before


@pytest.mark.skipif(os.name == "nt", reason="signals differ")
def test_ctrl_c_keeps_what_was_asked(tmp_path: Path, cache: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    arguments = ["selftest", "needle", "--lens", "900,1000,1100,1200,1300,1400,1500,1600"]
    arguments += [*TINY, "--no-dense", "--samples", "2", "--out", str(rows), "--exact"]
    process = subprocess.Popen(
        [sys.executable, "-m", "esa_cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        preexec_fn=listen,
    )
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        if rows.exists() and rows.read_text("utf-8").count("\n") >= 3:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "goes on" in err
    kept = [json.loads(line) for line in rows.read_text("utf-8").splitlines()]
    assert 3 <= len(kept) < 17


def test_compare_shows_answers_and_passages(esa: Esa, note: str) -> None:
    methods = "preset,streaming-llm,quest,yarn"
    done = esa("compare", note, "When does it open?", *TINY, "--quiet", "--methods", methods)
    assert done.code == 0, done.err
    assert all(name in done.out for name in methods.split(","))
    data = esa(
        "compare", note, "When does it open?", *TINY, "--quiet", "--methods", methods, "--json"
    )
    results = {row["method"]: row for row in json.loads(data.out)["methods"]}
    assert set(results) == set(methods.split(","))
    assert results["preset"]["shared"]
    assert not results["yarn"]["shared"]
    text = Path(note).read_text("utf-8")
    for passage in results["preset"]["passages"]:
        assert text[passage["start"] : passage["end"]] == passage["text"]
    assert results["streaming-llm"]["passages"] == []


def test_methods_are_listed_with_source_and_cost(esa: Esa) -> None:
    out = esa("methods").out
    data = json.loads(esa("methods", "--json").out)
    names = {row["name"] for row in data}
    wanted = {"esa", "esa-individual", "streaming-llm", "lm-infinite", "lm-infinite-topk"}
    wanted |= {"infllm", "tokenselect", "quest", "loki", "origin", "ntk", "ntk-dynamic", "yarn"}
    assert wanted <= names
    assert all(name in out for name in names)
    assert all(row["source"] and row["cost"] and row["about"] for row in data)
    assert "arXiv" in esa("methods", "--long").out
