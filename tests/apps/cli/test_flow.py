"""What one `esa ask` does once: it resolves the preset, builds the method, loads the plugins,
tokenises each document and times the machine."""

from __future__ import annotations

import functools
import importlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_fixtures import cache, esa, surroundings
from command import TINY, Esa

__all__ = ["cache", "esa", "surroundings"]
pytestmark = pytest.mark.usefixtures("surroundings")

TEXTS = {"one.md": "The gate opens at nine. " * 40, "two.md": "The boat leaves at noon. " * 30}


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Calls by name; tokenisations by the text's file."""
    found: Counter[str] = Counter()

    def count(name: str, place: str, attribute: str) -> None:
        module: Any = importlib.import_module(place)
        real: Callable[..., Any] = getattr(module, attribute)

        @functools.wraps(real)
        def counted(*given: Any, **options: Any) -> Any:
            found[name] += 1
            return real(*given, **options)

        monkeypatch.setattr(module, attribute, counted)

    count("presets resolved", "esa_cli.qa.presets.preset", "read_file")
    count("methods built", "esa_cli.qa.presets.resolved_preset", "build_method")
    count("plugins looked for", "esa_cli.methods.plugin_loading", "entry_points")
    count("machine timed", "esa_cli.qa.planning.plan", "probe")
    plugin_loading: Any = importlib.import_module("esa_cli.methods.plugin_loading")
    plugin_loading.load_installed.cache_clear()
    transformers: Any = importlib.import_module("transformers")
    known_model: Any = importlib.import_module("esa_cli.qa.opening")
    call, tokens = transformers.PreTrainedTokenizerBase.__call__, known_model.count_tokens

    def seen(text: Any) -> None:
        found.update(name for name, one in TEXTS.items() if isinstance(text, str) and one in text)

    def tokenise(self: Any, text: Any = None, *given: Any, **options: Any) -> Any:
        seen(text)
        return call(self, text, *given, **options)

    def count_tokens(folder: Path, text: str) -> int:
        seen(text)
        return int(tokens(folder, text))

    monkeypatch.setattr(transformers.PreTrainedTokenizerBase, "__call__", tokenise)
    monkeypatch.setattr(known_model, "count_tokens", count_tokens)
    return found


ONCE = {"presets resolved": 1, "methods built": 1, "plugins looked for": 1, "machine timed": 1}


@pytest.mark.parametrize(
    "words", [(), ("--keep",), ("--method", "streaming-llm"), ("--method", "yarn"), ("--json",)]
)
def test_a_cold_ask_does_each_thing_once(
    esa: Esa,
    counts: Counter[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
) -> None:
    monkeypatch.setenv("ESA_LIBRARY", str(tmp_path / "library"))
    monkeypatch.setattr("esa_cli.qa.planning.plan.recall", lambda key: None)
    for name, text in TEXTS.items():
        Path(name).write_text(text, "utf-8")
    done = esa("ask", *TEXTS, "When?", *TINY, "--max-new-tokens", "2", *words)
    assert done.code == 0, done.err
    assert counts == {**ONCE, **dict.fromkeys(TEXTS, 1)}


def test_what_is_in_the_library_is_not_tokenised(
    esa: Esa, counts: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESA_LIBRARY", str(tmp_path / "library"))
    Path("one.md").write_text(TEXTS["one.md"], "utf-8")
    assert esa("ingest", "one.md", *TINY).code == 0
    counts.clear()
    assert esa("ask", "one.md", "When?", *TINY, "--max-new-tokens", "2").code == 0
    assert counts == {"presets resolved": 1, "methods built": 1}
