"""`esa selftest`, `compare` and `methods` on the command line, with a tiny random model."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from command import QUICK, TINY, Esa, fail
from conftest import copy_registries
from engine_process import start

import esa_cli.documents.readers  # noqa: F401 - registered before a test copies the registry
from esa_cli.apps.cli.options.output_paths import complete_results_file
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.methods import registry
from esa_cli.qa.presets.preset import load_preset
from esa_cli.qa.presets.resolved_preset import replace_method, resolve_preset
from esa_cli.system.jsonl import ResultsFile

pytestmark = pytest.mark.usefixtures("surroundings")

SMALL = [*QUICK, "--no-dense", "--quiet", "--samples", "2"]


@pytest.mark.usefixtures("short_answers")
def test_selftest_prints_tables_and_writes_what_was_asked_for(esa: Esa, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    methods = "preset,streaming-llm"
    arguments = ["needle", "--len", "900,1200", "--methods", methods]
    done = esa("selftest", *arguments, *SMALL, "--out", str(rows))
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
    assert "reading: shared: preset, streaming-llm" in done.out


@pytest.mark.usefixtures("short_answers")
def test_every_test_runs(esa: Esa) -> None:
    """A random model scores nothing; what is checked is that it is asked and scored at all."""
    tests = "needle,needles,stars,passkey,number,kv,niah"
    done = esa("selftest", tests, "--len", "3k", *SMALL, "--json")
    assert done.code == 0, done.err
    rows = json.loads(done.out)["rows"]
    assert len({row["test"] for row in rows}) == 7
    assert all(0 <= row["score"] <= 1 for row in rows)
    assert all(row["recall"] is None or len(row["recall"]["layers"]) == 2 for row in rows)


def test_mistakes_are_named_before_the_model_is_loaded(
    esa: Esa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("esa_cli.models.load", refuse)
    fail(esa("selftest", "needel", *SMALL), 2, "needle")
    fail(esa("selftest", "needle", "--methods", "infllmm", *SMALL), 2, "infllm")
    fail(esa("selftest", "needle", "--len", "much", *SMALL), 2, "must be a number of tokens")
    fail(esa("selftest", "own", *SMALL), 2, "--haystack")
    fail(esa("selftest", "needle", "--haystack", str(tmp_path / "no.txt"), *SMALL), 3, "no.txt")
    fail(esa("selftest", "needle", "--out", str(tmp_path), *SMALL), 2, "got the folder")
    fail(esa("selftest", "needle", "--set", "context=100000", *SMALL), 4, "was trained on")
    monkeypatch.setenv("ESA_MEMORY_LIMIT", "500MiB")
    fail(esa("selftest", "needle", "--len", "1m", *SMALL), 6, "need")


def test_json_says_whether_all_was_asked(esa: Esa, monkeypatch: pytest.MonkeyPatch) -> None:
    from esa_cli.errors import PluginError
    from esa_cli.methods.per_head import QuestSelector

    words = ("selftest", "needle", "--len", "900", *SMALL, "--json")
    assert json.loads(esa(*words).out)["complete"] is True
    assert json.loads(esa(*words, "--time-limit", "0").out)["complete"] is False
    for stop in (PluginError("out of order"), KeyboardInterrupt()):

        def broken(*arguments: object, stop: BaseException = stop) -> None:
            raise stop

        monkeypatch.setattr(QuestSelector, "select", broken)
        done = esa(*words, "--methods", "preset,quest")
        assert done.code in (4, 130)
        assert json.loads(done.out)["complete"] is False
        assert {row["method"] for row in done.data["rows"]} == {"preset"}, "what was measured"


@pytest.mark.skipif(os.name == "nt", reason="signals differ")
@pytest.mark.process
def test_ctrl_c_keeps_what_was_asked(tmp_path: Path, surroundings: None) -> None:
    rows = tmp_path / "rows.jsonl"
    arguments = ["selftest", "needle", "--len", "900,1000,1100,1200,1300,1400,1500,1600"]
    process = start(*arguments, "--no-dense", "--samples", "2", "--out", str(rows))
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        if rows.exists() and rows.read_text("utf-8").count("\n") >= 3:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "continues" in err
    kept = [json.loads(line) for line in rows.read_text("utf-8").splitlines()]
    assert 3 <= len(kept) < 17


def test_compare_shows_answers_and_passages(esa: Esa, note: str) -> None:
    methods = "preset,streaming-llm,quest,yarn"
    asked = ["compare", note, "When does it open?", *TINY, "--quiet", "--methods"]
    done = esa(*asked, methods)
    assert done.code == 0, done.err
    assert all(name in done.out for name in methods.split(","))
    results = {row["method"]: row for row in esa(*asked, methods, "--json").data["methods"]}
    assert set(results) == set(methods.split(","))
    assert results["preset"]["shared"]
    assert not results["yarn"]["shared"]
    text = Path(note).read_text("utf-8")
    for passage in results["preset"]["passages"]:
        assert text[passage["start"] : passage["end"]] == passage["text"]
    fail(esa(*asked, ","), 2, "--methods must name a method")
    fail(esa("compare", note, *TINY), 2, "the question is missing", "esa compare book.txt")


@pytest.mark.parametrize("count", [1, 2])
def test_the_number_of_rows_has_its_noun(count: int, capsys: pytest.CaptureFixture[str]) -> None:
    results = ResultsFile(None, {}, fixed_fields=[], key_fields=["n"])
    for n in range(count):
        results.add_row({"n": n})

    def stop() -> bool:
        raise KeyboardInterrupt

    with Reporter() as reporter, pytest.raises(KeyboardInterrupt):
        complete_results_file(results, reporter, stop, lambda _: None)
    said = re.findall(r"\b(\d+) (rows?)\b", capsys.readouterr().err)
    assert said == 2 * [(str(count), "row" if count == 1 else "rows")]


SHORT = [*TINY, "--max-new-tokens", "2", "--quiet"]


def test_everything_is_listed_with_source_and_cost(esa: Esa) -> None:
    every = json.loads(esa("methods", "--json").out)
    # Other tests of the same process may have plugins, which need not say so much.
    rows = [row for row in every if row["origin"].startswith("esa_cli.")]
    found = {(row["kind"], row["name"]): row for row in rows}
    assert len(found) == len(rows)
    assert all(row["about"] and row["source"] and row["cost"] and row["origin"] for row in rows)
    assert found["method", "full"]["full"]
    table, long = esa("methods").out, esa("methods", "--long").out
    for (kind, name), row in found.items():
        first = [name, row["about"]] if kind == "method" else [name, kind, row["about"]]
        assert any(
            line.split()[0] == name and all(word in line for word in first)
            for line in table.splitlines() if line
        ), name  # fmt: skip
        assert row["about"] in long
        assert f"  cost: {row['cost']}\n  source: {row['source']}\n" in long


def test_a_file_of_recipes_only_is_a_plugin(
    esa: Esa, note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_registries(monkeypatch)
    source = (
        "from esa_cli.methods.registry import recipe\n\n"
        '@recipe("whole", about="a mix", source="me", cost="F M")\n'
        "def whole(base):\n    return {'selector': {'name': 'topk', 'proximity': 2}}\n"
    )
    (tmp_path / "whole.py").write_text(source)
    assert esa("plugins", "check", "whole.py").code == 0
    rows = json.loads(esa("methods", "--plugin", "whole.py", "--json").out)
    (row,) = (row for row in rows if row["name"] == "whole")
    assert (row["kind"], row["origin"]) == ("method", str((tmp_path / "whole.py").resolve()))
    done = esa("ask", note, "When?", *SHORT, "--plugin", "whole.py", "--method", "whole")
    assert done.code == 0, done.err
    wrong = source.replace('"whole"', '"broken"').replace("'selector'", "'windows'")
    (tmp_path / "broken.py").write_text(wrong)
    bad = esa("plugins", "check", "broken.py")
    assert bad.code == 4
    assert "checks fail: method broken" in bad.err


@pytest.mark.parametrize("base", ["tiny-random", "default"])
@pytest.mark.parametrize("length", [1, 100_000])
def test_a_method_is_a_preset_with_its_parts(base: str, length: int) -> None:
    given = ["window.selected=96", "selector.proximity=5", "reading=local"]
    given = given[:1] if base == "default" else given
    chosen = load_preset(base, given)
    for one in registry.RECIPES.values():
        made = resolve_preset(chosen, method=one.name, document_tokens=length)
        assert made.preset == replace_method(one.name, chosen, length), one.name
        assert resolve_preset(made) is made


@pytest.mark.parametrize("name", sorted(registry.RECIPES))
def test_ask_answers_by_any_method(name: str, esa: Esa, note: str) -> None:
    done = esa("ask", note, "When?", *SHORT, "--json", "--method", name)
    assert done.code == 0, done.err
    data = json.loads(done.out)
    made = replace_method(name, load_preset("tiny-random"))
    assert (data["selector"], data["position"]) == (made.selector["name"], made.position["name"])
    assert data["window"]["selected"] == made.window.selected
