"""Settings of a self-test, and its methods in groups that share a prefill.

A method that is alone in its group prefills by its own rule, as in `esa ask`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from esa_cli.errors import UsageError
from esa_cli.methods import registry
from esa_cli.qa.presets import resolved_preset
from esa_cli.qa.presets.preset import Preset, merge, validated
from esa_cli.qa.presets.resolved_preset import resolve

DENSE = "dense"
"""Method name of the ceiling: the same model with full attention, inside its own window."""
DENSE_SHARE = 0.9
"""Share of the model's window that the ceiling's document takes."""
DENSE_ROOM = 256
"""Tokens left beside that document for the chat template, the question and the answer."""
MOST_TOKENS = 100_000_000
"""Of a document."""
MOST_DEPTHS = 1000
KEY = ("test", "method", "length", "sample", "question")
"""Fields that identify a row."""


@dataclass(frozen=True)
class SelftestSettings:
    """The options of a self-test.

    Args:
        tests, methods: names; the method `preset` is the preset's own selector over stored rows,
            `text` its answers from text.
        lengths: tokens of each document; the test `own` has one length, its text's.
        depths: shares of the document; None: even ones.
        samples: questions for each test and length, as far as the test has them.
        reading: one prefill for all methods, or one each. exact: the benchmarks' own protocols.
        dense: measure the ceiling, too.
    """

    tests: tuple[str, ...]
    methods: tuple[str, ...]
    lengths: tuple[int, ...]
    depths: tuple[float, ...] | None = None
    samples: int = 8
    seed: int = 0
    reading: Literal["shared", "own"] = "shared"
    exact: bool = False
    dense: bool = True


@dataclass(frozen=True)
class MethodGroup:
    """Methods over one prefill: it attends to I and L only ("shared"), or is by the method's own
    rule ("own"), or there is none and a text is read for the finder alone ("text"). dense: the
    ceiling."""

    names: tuple[str, ...]
    presets: tuple[Preset, ...]
    reading: Literal["shared", "own", "text"] = "own"
    dense: bool = False


def groups(settings: SelftestSettings, preset: Preset, length: int) -> list[MethodGroup]:
    """The methods, grouped by the prefill they can share. Raises UsageError: a method is unknown.
    PresetError: its settings are wrong."""
    shared: dict[str, list[tuple[str, Preset]]] = {}
    alone, distance = [], resolve(preset).method.position.distance
    for name in dict.fromkeys(settings.methods):
        chosen = resolved_preset.compared(name, preset, length)
        if name == resolved_preset.FROM_TEXT:
            alone.append(MethodGroup((name,), (chosen,), "text"))
            continue
        method = resolve(chosen).method
        # Only scores with reduced keys need the compressor that is fitted during prefill, and a
        # shared prefill has the preset's positions.
        fitting = method.fitting if method.score.features else None
        elsewhere = fitting is not None and fitting[1] not in (None, distance)
        if elsewhere or _is_full(name, chosen) or settings.reading == "own":
            alone.append(MethodGroup((name,), (chosen,)))
        else:
            shared.setdefault(repr(fitting), []).append((name, chosen))
    if len(shared) > 1 and (anywhere := shared.pop(repr(None), None)):
        next(iter(shared.values())).extend(anywhere)
    together = []
    for pairs in shared.values():
        names, presets = zip(*pairs, strict=True)
        together.append(MethodGroup(names, presets, "shared" if len(pairs) > 1 else "own"))
    return [*together, *alone]


def _is_full(name: str, preset: Preset) -> bool:
    """True if the method attends to all tokens, whatever the budget."""
    return preset.selector["name"] == "full" or (
        name != resolved_preset.AS_IS and registry.find_recipe(name).full
    )


def dense_length(preset: Preset) -> int:
    """Tokens of the ceiling's document."""
    return min(int(preset.context * DENSE_SHARE), preset.context - DENSE_ROOM)


def dense_group(preset: Preset) -> MethodGroup:
    """Full attention at true positions."""
    over: dict[str, Any] = {
        "window": {"dense": preset.context},
        "compressor": {"name": "none"},
        "position": {"name": "true"},
    }
    data = merge(preset.model_dump(exclude={"name"}), over)
    return MethodGroup((DENSE,), (validated(preset.name, data),), dense=True)


def tokens(text: str) -> int:
    """ "32k" -> 32000. Raises UsageError: it is no number, or beyond `MOST_TOKENS`."""
    plain = text.strip().lower().replace("_", "")
    factor = {"k": 1_000, "m": 1_000_000}.get(plain[-1:])
    try:
        count = int(float(plain[:-1]) * factor if factor else float(plain))
    except (ValueError, OverflowError):
        count = 0
    if not 0 < count <= MOST_TOKENS:
        raise UsageError(
            f"a length must be a number of tokens from 1 to {MOST_TOKENS:,}, got {text[:40]!r}",
            "for example: 32k, 8000, 1m",
        )
    return count


def depths(text: str | None) -> tuple[float, ...] | None:
    """ "10" -> ten even depths; "0,25,50,100" -> these, in per cent; "50%" -> this one. Raises
    UsageError: not numbers from 0 to 100."""
    if text is None:
        return None
    try:
        values = [float(part.strip().removesuffix("%")) for part in text.split(",")]
    except ValueError:
        values = [-1.0]
    is_count = len(values) == 1 and "%" not in text
    if is_count and 1 <= values[0] <= MOST_DEPTHS and values[0].is_integer():
        count = int(values[0])
        return tuple((i + 0.5) / count for i in range(count))
    if not all(0 <= value <= 100 for value in values):
        raise UsageError(
            f"--depths must be a count up to {MOST_DEPTHS} or percents from 0 to 100, got {text!r}",
            "for example: 10, or 0,25,50,75,100; a single one as 50%",
        )
    return tuple(value / 100 for value in values)


def all_in_view(tokens: int, presets: Sequence[Preset]) -> str | None:
    """A note if the text is so short that every method over rows uses full attention: such a test
    says nothing about selection."""
    plain = min((resolve(preset).method.window.dense_below for preset in presets), default=-1)
    if tokens > plain:
        return None
    return (
        f"all {tokens:,} tokens are in view of every method: up to {plain:,} (window.dense) "
        "attention is full; with --set window.dense=null they select"
    )
