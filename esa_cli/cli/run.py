"""The steps of `ask` and `plan`, in the order in which mistakes are cheapest to find.

arguments -> preset -> documents -> method -> model's small files -> plan -> model -> answer
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .. import models, preset
from ..document import join, read_documents
from ..errors import UsageError
from ..machine import peak_memory, size_text, time_text
from . import known
from .render import Reporter, print_json

WORTH_REMEMBERING = 2048
"""Tokens that a reading must have for its speed to say something about the next."""
EXAMPLE = 'for example: esa ask book.txt "Who is Ahab?"'


@dataclass(frozen=True)
class Request:
    """What the person asked for."""

    documents: Sequence[str]
    question: str
    preset: str
    overrides: Sequence[str] = ()
    max_new_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    device: str = "auto"
    dtype: str = "auto"


@dataclass(frozen=True)
class Prepared:
    """Everything known before the model is loaded."""

    preset: preset.Preset
    text: str
    config: dict[str, Any]
    plan: Any
    folder: Path


@dataclass
class Timing:
    """Seconds, and tokens per second."""

    load_s: float = 0.0
    ingest_s: float = 0.0
    answer_s: float = 0.0
    ingest_tokens_per_s: float = 0.0
    _since: float = field(default_factory=time.perf_counter, repr=False)

    def lap(self) -> float:
        now = time.perf_counter()
        spent, self._since = now - self._since, now
        return spent


def split(arguments: Sequence[str]) -> tuple[list[str], str]:
    """Documents and question. Raises UsageError when one of them is missing."""
    if not arguments:
        raise UsageError("no document and no question", EXAMPLE)
    *documents, question = arguments
    if question == "-" or _is_file(question):
        raise UsageError(f"the question is missing: {question} is a document", EXAMPLE)
    if not documents:
        raise UsageError(f"the document is missing, or the question behind {question!r}", EXAMPLE)
    if not question.strip():
        raise UsageError("the question is empty", EXAMPLE)
    return documents, question


def _is_file(text: str) -> bool:
    try:
        return bool(text) and Path(text).is_file()
    except (OSError, ValueError):  # too long for a path, as questions may be
        return False


def prepare(request: Request, reporter: Reporter) -> Prepared:
    """Checks everything that can be checked without the model's weights.

    Raises:
        PresetError, DocumentError, ModelError, UsageError.
    """
    chosen = preset.load(request.preset, request.overrides)
    models.parse_reference(chosen.model)
    text = join(read_documents(request.documents))
    reporter.stage("import", 0, None)
    from .. import build

    build.method(chosen)
    model = known.look(chosen, known.Place.of(request.device, request.dtype), reporter)
    estimate = model.plan(chosen, model.tokens(text))
    return Prepared(chosen, text, model.config, estimate, model.folder)


def run(request: Request, *, as_json: bool, quiet: bool) -> None:
    """Answers the question, on standard output.

    Raises:
        EsaError: whatever was wrong, before or while answering.
    """
    reporter, timing = Reporter(quiet), Timing()
    try:
        ready = prepare(request, reporter)
        ready.plan.check()
        _answer(request, ready, reporter, timing, as_json)
    finally:
        reporter.settle()


def _answer(
    request: Request, ready: Prepared, reporter: Reporter, timing: Timing, as_json: bool
) -> None:
    from ..models.quiet import quiet_transformers
    from ..session import Session

    loaded = load(ready, request, reporter)
    with quiet_transformers(), Session(loaded.model, loaded.tokenizer, ready.preset) as session:
        timing.load_s = timing.lap()
        with reporter.reading(ready.plan.tokens, ready.plan.seconds) as progress:
            session.read(ready.text, progress)
        timing.ingest_s = timing.lap()
        timing.ingest_tokens_per_s = session.document_tokens / timing.ingest_s
        _remember(ready, timing)
        reporter.waiting("answering")
        answer = session.ask(
            request.question,
            max_new_tokens=request.max_new_tokens,
            temperature=request.temperature,
            seed=request.seed,
            on_text=None if as_json else _without_margin(reporter),
        )
        timing.answer_s = timing.lap()
        reporter.settle()
        result = _result(ready, session, answer, timing, str(loaded.device))
    if as_json:
        print_json(result)
    else:
        print(flush=True)
        reporter.note(_summary(result))
        if answer.cut:
            reporter.note("the answer was cut off; --max-new-tokens allows a longer one")


def load(ready: Prepared, request: Request, reporter: Reporter) -> Any:
    """The model and its tokenizer. Raises ModelError, ResourceError."""
    return known.load(ready.preset.model, ready.folder, request.device, request.dtype, reporter)


def _without_margin(reporter: Reporter) -> Any:
    """Prints pieces of the answer, leaving out white space before its first word."""
    started = False

    def show(piece: str) -> None:
        nonlocal started
        piece = piece if started else piece.lstrip()
        if piece:
            started = True
            reporter.answer(piece)

    return show


def _remember(ready: Prepared, timing: Timing) -> None:
    """Short readings say little about a machine's speed."""
    from .. import rates

    if ready.plan.tokens >= WORTH_REMEMBERING:
        rates.remember(ready.plan.rate_key, ready.plan.operations / timing.ingest_s)


def _result(
    ready: Prepared, session: Any, answer: Any, timing: Timing, device: str
) -> dict[str, Any]:
    chosen = ready.preset
    window = chosen.window.model_dump()
    times = {key: round(value, 3) for key, value in asdict(timing).items() if key[0] != "_"}
    return {
        "answer": answer.text,
        "model": chosen.model,
        "preset": chosen.name,
        "selector": chosen.selector["name"],
        "position": chosen.position["name"],
        "window": {key: window[key] for key in ("initial", "selected", "local", "chunk")},
        "tokens": {
            "document": session.document_tokens,
            "question": answer.question_tokens,
            "answer": answer.answer_tokens,
        },
        "timing": times,
        "peak_memory_bytes": peak_memory(device),
    }


def _summary(result: dict[str, Any]) -> str:
    tokens, timing = result["tokens"], result["timing"]
    return (
        f"{tokens['document']:,} tokens read in {time_text(timing['ingest_s'])} "
        f"({timing['ingest_tokens_per_s']:,.0f} tokens/s), {tokens['answer']} answered in "
        f"{time_text(timing['answer_s'])}, loaded in {time_text(timing['load_s'])}, "
        f"peak memory {size_text(result['peak_memory_bytes'])}"
    )
