"""Methods in groups that share a prefill, and one question by several methods side by side.

A method without others in its group prefills by its own rule, as in `esa ask`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from esa_cli.attention.method import Method
from esa_cli.attention.parts import Selector
from esa_cli.attention.step import Selection, Step
from esa_cli.documents.document import Document
from esa_cli.errors import UsageError
from esa_cli.evaluation.text_asker import TextAsker
from esa_cli.methods import registry
from esa_cli.qa.answering.session import Session
from esa_cli.qa.attention_evidence import reply_from_rows
from esa_cli.qa.finding.books import Book
from esa_cli.qa.presets import resolved_preset
from esa_cli.qa.presets.preset import Preset, merge, validated
from esa_cli.qa.presets.resolved_preset import build_method, resolve
from esa_cli.system.machine import peak_memory
from esa_cli.system.progress import Progress

DENSE = "dense"
"""Method name of the ceiling: the same model with full attention, inside its own window."""
MAX_TOKENS = 100_000_000
"""Of a document."""
KEY = ("test", "method", "length", "sample", "question")
"""Fields that identify a row."""


@dataclass(frozen=True)
class SelftestSettings:
    """The options of a self-test: names of tests and methods, tokens of each document, questions
    for each test and length, one prefill for all methods or one each, and whether the ceiling is
    measured."""

    tests: tuple[str, ...]
    methods: tuple[str, ...]
    lengths: tuple[int, ...]
    samples: int = 8
    seed: int = 0
    reading: Literal["shared", "own"] = "shared"
    dense: bool = True


@dataclass(frozen=True)
class MethodGroup:
    """Methods that share one prefill, which attends to I and L only ("shared") or follows the rule
    of a single method ("own"), or that answer from text ("text"). `dense` marks the ceiling."""

    names: tuple[str, ...]
    presets: tuple[Preset, ...]
    reading: Literal["shared", "own", "text"] = "own"
    dense: bool = False


def groups(settings: SelftestSettings, preset: Preset, length: int) -> list[MethodGroup]:
    """Groups the methods by the prefill they can share. Raises UsageError: a method is unknown.
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
        is_full = chosen.selector["name"] == "full" or (
            name != resolved_preset.AS_IS and registry.find_recipe(name).full
        )
        if elsewhere or is_full or settings.reading == "own":
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


def dense_length(preset: Preset) -> int:
    """Tokens of the ceiling's document: nine tenths of the model's window, with room for the chat
    template, the question and the answer."""
    return min(int(preset.context * 0.9), preset.context - 256)


def dense_group(preset: Preset) -> MethodGroup:
    """Returns full attention at true positions."""
    over = {"window": {"dense": preset.context}, "compressor": {"name": "none"}}
    over["position"] = {"name": "true"}
    data = merge(preset.model_dump(exclude={"name"}), over)
    return MethodGroup((DENSE,), (validated(preset.name, data),), dense=True)


def tokens(text: str) -> int:
    """Parses a length: "32k" -> 32000. Raises UsageError: not a number up to `MAX_TOKENS`."""
    plain = text.strip().lower().replace("_", "")
    factor = {"k": 1_000, "m": 1_000_000}.get(plain[-1:])
    try:
        count = int(float(plain[:-1]) * factor if factor else float(plain))
    except (ValueError, OverflowError):
        count = 0
    if not 0 < count <= MAX_TOKENS:
        raise UsageError(
            f"a length must be a number of tokens from 1 to {MAX_TOKENS:,}, got {text[:40]!r}",
            "for example: 32k, 8000, 1m",
        )
    return count


def all_in_view(tokens: int, presets: Sequence[Preset]) -> str | None:
    """Returns a note if the text is so short that every method uses full attention."""
    plain = min((resolve(preset).method.window.dense_below for preset in presets), default=-1)
    if tokens > plain:
        return None
    return (
        f"all {tokens:,} tokens are in view of every method: up to {plain:,} (window.dense) "
        "attention is full; with --set window.dense=null they select"
    )


@dataclass(frozen=True)
class ObservedSelector(Selector):
    """A selector that lets others observe, which have their layer states at question time then."""

    inner: Selector
    others: tuple[Selector, ...]

    def select(self, step: Step, budget: int) -> Selection:
        return self.inner.select(step, budget)

    def observe(self, step: Step) -> None:
        for other in self.others:
            other.observe(step)


def shared_reading(base: Method, methods: Sequence[Method]) -> Method:
    """Returns the base method with prefill by I and L only, observed by all methods that observe,
    and with the methods' compressor, of which there is one."""
    others = tuple(dict.fromkeys(m.selector for m in methods if m.selector.observes))
    selector = ObservedSelector(base.selector, others) if others else base.selector
    fitting = next((m for m in methods if m.score.features), base)
    return replace(
        base, selector=selector, score=fitting.score, compressor=fitting.compressor, reading="local"
    )


def read_for(
    session: Session, base: Preset, group: MethodGroup, text: str, progress: Progress
) -> float:
    """Prefills a text for the group's methods, in the session's preset; returns the seconds."""
    started = time.perf_counter()
    method = None
    if group.reading == "shared":
        method = shared_reading(build_method(base), [build_method(p) for p in group.presets])
    session.read(text, progress, method)
    return time.perf_counter() - started


def compare(
    loaded: Any,
    preset: Preset,
    groups: Sequence[MethodGroup],
    text: str,
    question: str,
    *,
    count: int,
    reading: Callable[[Sequence[str]], Progress],
    most: int | None,
) -> list[dict[str, Any]]:
    """Asks one question by every method. Returns a row for each, with times in seconds, `count`
    passages that the answer rests on, bytes of the KV cache, which methods may share, and the
    process's peak. `reading`, called with the names of the methods before their prefill, returns
    progress(done, total); `most` is the number of new tokens."""
    rows: list[dict[str, Any]] = []
    keys = ("start", "end", "weight", "text")
    with Session(loaded.model, loaded.tokenizer, preset, loaded.cache) as session:
        spans = torch.tensor(session.prompt.offsets(text)).reshape(-1, 2)
        head = len(session.prompt.head())
        document = Document("", text, source="", encoding="", bytes=0)
        book = Book(document, None, spans, rows=range(head, head + len(spans)))
        for group in groups:
            progress = reading(group.names)
            asker = TextAsker(session, group.presets[0]) if group.reading == "text" else None
            if asker is not None:
                read_s, nbytes = asker.read(text, progress), asker.nbytes
            else:
                session.clear()
                session.use(group.presets[0])
                read_s = read_for(session, preset, group, text, progress)
                nbytes = session.cache.nbytes
            for name, chosen in zip(group.names, group.presets, strict=True):
                if asker is not None:
                    reply = asker.ask(question, most)
                else:
                    session.use(chosen)
                    reply, _ = reply_from_rows(
                        session, question, [book], count, max_new_tokens=most
                    )
                passages = reply.evidence[:count]
                rows.append({
                    "method": name, "answer": reply.text, "read_s": read_s,
                    "shared": group.reading == "shared", "first_token_s": reply.first_token_s,
                    "answer_s": reply.total_s, "cache_bytes": nbytes,
                    "passages": [{key: getattr(one, key) for key in keys} for one in passages],
                    "peak_bytes": peak_memory(str(loaded.device)),
                })  # fmt: skip
    return rows
