"""Groups methods that can share one prefill, and compares several methods on one question."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from esa_cli.attention.method import Method
from esa_cli.attention.parts import Selector
from esa_cli.attention.step import Selection, Step
from esa_cli.documents.document import Document
from esa_cli.errors import UsageError
from esa_cli.evaluation.text_asker import TextAnswerer
from esa_cli.methods import registry
from esa_cli.models import LoadedModel
from esa_cli.qa.answering.session import Session
from esa_cli.qa.attention_evidence import answer_from_kv_cache
from esa_cli.qa.finding.passage_finder import Book
from esa_cli.qa.presets import resolved_preset
from esa_cli.qa.presets.preset import Preset, merge_settings, validate_preset_settings
from esa_cli.qa.presets.resolved_preset import build_attention_method, resolve_preset
from esa_cli.system.machine import measure_peak_memory
from esa_cli.system.progress import Progress

DENSE = "dense"
"""The method name of the ceiling: the model with full attention inside its trained window."""
MAX_TOKENS = 100_000_000
"""Largest number of tokens in a document."""
KEY = ("test", "method", "length", "sample", "question")
"""The fields that identify a row of a self-test."""


@dataclass(frozen=True)
class SelftestSettings:
    """The options of a self-test of attention methods."""

    tests: tuple[str, ...]
    methods: tuple[str, ...]
    lengths: tuple[int, ...]  # the numbers of tokens in documents
    samples: int = 8  # the number of questions for each test and length
    seed: int = 0
    reading: Literal["shared", "own"] = "shared"  # one prefill for all methods or for each method
    dense: bool = True  # whether full attention inside the model's window is measured, too


@dataclass(frozen=True)
class PrefillGroup:
    """Methods that share one prefill of a document."""

    presets: Mapping[str, Preset]  # by the methods' names
    reading: Literal["shared", "own", "text"] = "own"
    """Whether methods share a prefill with local attention, have their own, or read passages."""
    dense: bool = False  # whether the method is full attention inside the model's trained window


def group_methods_by_prefill(
    settings: SelftestSettings, preset: Preset, document_tokens: int
) -> list[PrefillGroup]:
    """Groups the methods that can share a prefill. Raises UsageError, PresetError."""
    shared: dict[str, dict[str, Preset]] = {}
    alone, distance = [], resolve_preset(preset).method.position.distance
    for name in dict.fromkeys(settings.methods):
        chosen = resolved_preset.set_method_to_compare(name, preset, document_tokens)
        if name == resolved_preset.FROM_TEXT:
            alone.append(PrefillGroup({name: chosen}, "text"))
            continue
        method = resolve_preset(chosen).method
        # Only scores with reduced keys need the compressor that is fitted during prefill, and a
        # shared prefill has the preset's positions.
        fitting = method.get_reduced_key_settings() if method.score.features else None
        elsewhere = fitting is not None and fitting[1] not in (None, distance)
        is_full = chosen.selector["name"] == "full" or (
            name != resolved_preset.AS_IS and registry.find_method(name).full
        )
        if elsewhere or is_full or settings.reading == "own":
            alone.append(PrefillGroup({name: chosen}))
        else:
            shared.setdefault(repr(fitting), {})[name] = chosen
    if len(shared) > 1 and (anywhere := shared.pop(repr(None), None)):
        next(iter(shared.values())).update(anywhere)
    groups = shared.values()
    return [*(PrefillGroup(one, "shared" if len(one) > 1 else "own") for one in groups), *alone]


def get_max_full_attention_tokens(preset: Preset) -> int:
    # A tenth of the window is left for the chat template, the question and the answer.
    return min(int(preset.context * 0.9), preset.context - 256)


def make_full_attention_group(preset: Preset) -> PrefillGroup:
    """Makes a group with one method, which is full attention at the tokens' true positions."""
    over = {"window": {"dense": preset.context}, "compressor": {"name": "none"}}
    over["position"] = {"name": "true"}
    data = merge_settings(preset.model_dump(exclude={"name"}), over)
    return PrefillGroup({DENSE: validate_preset_settings(preset.name, data)}, dense=True)


def parse_token_count(text: str) -> int:
    """Parses a number of tokens such as "32k". Raises UsageError: the text is no valid number."""
    plain = text.strip().lower().replace("_", "")
    factor = {"k": 1_000, "m": 1_000_000}.get(plain[-1:])
    try:
        count = int(float(plain[:-1]) * factor if factor else float(plain))
    except (ValueError, OverflowError):
        count = 0
    if not 0 < count <= MAX_TOKENS:
        message = f"a length must be a number of tokens from 1 to {MAX_TOKENS:,}, got {text[:40]!r}"
        raise UsageError(message, "give a number of tokens such as 32k, 8000 or 1m")
    return count


def explain_if_attention_is_full(document_tokens: int, presets: Iterable[Preset]) -> str | None:
    """Returns a note if a document is so short that every method attends to all tokens."""
    windows = [resolve_preset(preset).method.window for preset in presets]
    limit = min((window.full_attention_limit for window in windows), default=-1)
    if document_tokens > limit:
        return None
    return (
        f"every method attended to all {document_tokens:,} tokens, since attention is full up to "
        f"{limit:,} tokens (window.dense); use --set window.dense=null to let "
        "the methods select tokens"
    )


@dataclass(frozen=True)
class SelectorWithObservers(Selector):
    """Selects tokens by one selector, and calls the method `observe` of other selectors."""

    selector: Selector
    others: tuple[Selector, ...]

    def select(self, step: Step, budget: int) -> Selection:
        return self.selector.select(step, budget)

    def observe(self, step: Step) -> None:
        for other in self.others:
            other.observe(step)


def build_shared_prefill_method(base: Method, methods: Sequence[Method]) -> Method:
    """Returns a method of initial and local attention that fits the methods' shared compressor."""
    others = tuple(dict.fromkeys(m.selector for m in methods if m.selector.is_observer))
    selector = SelectorWithObservers(base.selector, others) if others else base.selector
    fitting = next((m for m in methods if m.score.features), base)
    return replace(
        base, selector=selector, score=fitting.score, compressor=fitting.compressor, reading="local"
    )


def read_text(
    answerer: Session | TextAnswerer, base_preset: Preset, group: PrefillGroup, text: str,
    progress: Progress,
) -> float:  # fmt: skip
    """Reads a text for all methods of a group, and returns the seconds that this took."""
    started = time.perf_counter()
    method = None
    if group.reading == "shared":
        methods = [build_attention_method(preset) for preset in group.presets.values()]
        method = build_shared_prefill_method(build_attention_method(base_preset), methods)
    answerer.read(text, progress, method)
    return time.perf_counter() - started


def compare_answers_of_methods(
    loaded: LoadedModel, preset: Preset, groups: Sequence[PrefillGroup], text: str, question: str,
    *, max_passages: int, start_progress: Callable[[str], Progress], max_new_tokens: int | None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Returns each method's answer, best passages, times in seconds and memory in bytes."""
    rows: list[dict[str, Any]] = []
    keys = ("start", "end", "weight", "text")
    with Session(loaded.model, loaded.tokenizer, preset, loaded.cache) as session:
        spans = torch.tensor(session.prompt.find_token_offsets(text)).reshape(-1, 2)
        head = len(session.prompt.encode_prompt_start())
        document = Document("", text, source="", encoding="", bytes=0)
        book = Book(document, None, spans, rows=range(head, head + len(spans)))
        for group in groups:
            progress = start_progress(f"reading for {', '.join(group.presets)}")
            first, reads = next(iter(group.presets.values())), group.reading == "text"
            session.empty_cache()
            session.use_preset(first)
            asker = TextAnswerer(loaded, session, first) if reads else None
            read_s = read_text(asker or session, preset, group, text, progress)
            nbytes = asker.nbytes if asker else session.cache.nbytes
            for name, chosen in group.presets.items():
                if asker is not None:
                    reply = asker.ask(question)
                else:
                    session.use_preset(chosen)
                    reply, _ = answer_from_kv_cache(
                        session, question, [book], max_passages, max_new_tokens=max_new_tokens
                    )
                passages = reply.evidence[:max_passages]
                rows.append({
                    "method": name, "answer": reply.text, "read_s": read_s,
                    "shared": group.reading == "shared", "first_token_s": reply.first_token_s,
                    "answer_s": reply.total_s, "cache_bytes": nbytes,
                    "passages": [{key: getattr(one, key) for key in keys} for one in passages],
                    "peak_bytes": measure_peak_memory(str(loaded.device)),
                })  # fmt: skip
    return rows
