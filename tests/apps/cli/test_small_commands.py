"""`esa plan`, `presets`, `plugins`, `models` and `doctor`."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest
from cli_fixtures import cache, esa, note, surroundings
from command import TINY, Esa, fail

__all__ = ["cache", "esa", "note", "surroundings"]
pytestmark = pytest.mark.usefixtures("surroundings")


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


def test_presets_commands(esa: Esa, tmp_path: Path) -> None:
    assert "tiny-random" in esa("presets", "list").out
    shown = esa("presets", "show", "tiny-random")
    (tmp_path / "mine.yaml").write_text(shown.out)
    assert esa("presets", "show", "mine.yaml").out == shown.out
    assert "rank: 3" in esa("presets", "show", "tiny-random", "--set", "compressor.rank=3").out
    fail(esa("presets", "show", "tiny-random", "--set", "selector.name=best"), 4, "best")
    adapter = ("--set", "answer.from=text", "--set", "answer.adapter=none")
    fail(esa("presets", "show", "tiny-random", *adapter), 4, "answer.adapter must be")


def test_known_models(esa: Esa) -> None:
    known = esa("models", "list", "--known").out
    assert "Qwen/Qwen3-8B" in known
    assert "15.3 GiB" in known
    assert {"name", "model", "weights"} < set(
        esa("models", "list", "--known", "--json").data["models"][0]
    )


def test_heads_are_held_to_the_models_sizes(esa: Esa, note: str) -> None:
    tiny = ("--set", "score={name: vote, heads: [[0, 4]]}", "--set", "selector.name=consensus")
    fail(esa("plan", note, *TINY, *tiny), 4, "4 heads of random:llama, got [0, 4]")


def test_a_broken_preset_of_ones_own_does_not_hide_the_others(esa: Esa, tmp_path: Path) -> None:
    folder = tmp_path / "config/esa/presets"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("[")
    out = esa("presets", "list").out
    assert "broken" in out
    assert "tiny-random" in out


def test_plugins_commands(esa: Esa, tmp_path: Path) -> None:
    parts = {(one["kind"], one["name"]): one for one in esa("methods", "--json").data}
    closed_form = parts["compressor", "closed-form"]
    assert closed_form["origin"].startswith("esa_cli.attention.")
    assert closed_form["settings"].startswith("rank=48")
    assert esa("plugins", "list").out == esa("methods").out
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


def test_a_model_has_a_short_name(
    esa: Esa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from esa_cli.models import DEFAULT_MODEL
    from esa_cli.models.files.model_reference import parse_reference
    from esa_cli.models.files.prepared_models import build

    monkeypatch.setenv("ESA_HOME", str(tmp_path / "home"))
    folder = build(parse_reference(DEFAULT_MODEL), lambda _: {})
    out = esa("models", "list").out
    assert all(len(line) <= 80 for line in out.splitlines())
    name = out.splitlines()[1].split()[0]
    assert name.startswith("smollm2-135m-instruct")
    (listed,) = json.loads(esa("models", "list", "--json").out)["models"]
    assert (listed["name"], listed["reference"]) == (name, DEFAULT_MODEL)
    assert listed["folder"] == str(folder)
    assert esa("models", "rm", name, "--yes").code == 0
    assert json.loads(esa("models", "list", "--json").out) == {"models": []}


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


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ESA_MEMORY_LIMIT", "lots", "ESA_MEMORY_LIMIT must be a size, got 'lots'"),
        ("ESA_HOME", "~no-such-user/x", "no home folder ~no-such-user"),
    ],
)
def test_doctor_reports_nonsense_in_the_environment(
    esa: Esa, monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    monkeypatch.setenv(name, value)
    result = esa("doctor")
    assert result.code == 0
    assert sum(words in line for line in result.out.splitlines()) == 1
    data = json.loads(esa("doctor", "--json").out)
    assert any(words in hint for hint in data["hints"])
    assert data["memory"]["available"] > 1 << 20
    assert data["memory"]["limit"] is None
    assert data["free_disk"] > 1 << 20


def test_a_cache_folder_of_nobody_is_refused(
    esa: Esa, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESA_HOME", "~no-such-user/x")
    fail(esa("ask", note, "What?", *TINY), 2, "ESA_HOME ~no-such-user/x")


@pytest.mark.parametrize("columns", [60, 80, 100, 400])
def test_tables_fit_the_terminal(esa: Esa, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    shown = {}
    for group, *more in (("presets", "list"), ("methods",)):
        monkeypatch.setattr("sys.stdout", Terminal())
        esa(group, *more)
        text = re.sub(r"\x1b\[[0-9;]*m", "", sys.stdout.getvalue())  # type: ignore[attr-defined]
        shown[group] = text.splitlines()
        assert max(map(len, shown[group])) <= columns
    assert any(line.startswith("default ") for line in shown["presets"])
