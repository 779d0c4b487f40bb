"""`esa methods`, and commands that ask by a whole method: `--method`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import TINY, Esa
from conftest import copy_registries

import esa_cli.documents.readers  # noqa: F401 - registered before a test copies the registry
from esa_cli.methods import registry
from esa_cli.qa.presets.preset import load_preset
from esa_cli.qa.presets.resolved_preset import replace_method, resolve_preset

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
    for one in registry.list_methods():
        made = resolve_preset(chosen, method=one.name, document_tokens=length)
        assert made.preset == replace_method(one.name, chosen, length), one.name
        assert resolve_preset(made) is made
        assert resolve_preset(base, given, one.name, length) == made


@pytest.mark.parametrize("name", [one.name for one in registry.list_methods()])
def test_ask_answers_by_any_method(name: str, esa: Esa, note: str) -> None:
    done = esa("ask", note, "When?", *SHORT, "--json", "--method", name)
    assert done.code == 0, done.err
    data = json.loads(done.out)
    made = replace_method(name, load_preset("tiny-random"))
    assert (data["selector"], data["position"]) == (made.selector["name"], made.position["name"])
    assert data["window"]["selected"] == made.window.selected
