"""The steps of `plan`, `compare` and others, in the order in which mistakes are cheapest to find.

arguments -> preset -> documents -> method -> model's small files -> plan -> model
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esa_cli import models
from esa_cli.apps.cli import inputs as books
from esa_cli.apps.cli import preflight as known
from esa_cli.apps.cli.terminal import Reporter
from esa_cli.documents.document import join
from esa_cli.errors import UsageError
from esa_cli.qa import preset

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


def split(
    arguments: Sequence[str], *, library: bool = False, lines: bool = False
) -> tuple[list[str], str]:
    """Documents and question.

    Args:
        library: no document need be given. lines: the questions come on standard input.

    Raises:
        UsageError: one of them is missing, or standard input is both.
    """
    if lines:
        if "-" in arguments:
            raise UsageError("standard input (-) cannot be a document and the questions", EXAMPLE)
        if not arguments and not library:
            raise UsageError("no document", "for example: esa ask book.txt --stdin < questions.txt")
        return list(arguments), ""
    if not arguments:
        raise UsageError("no document and no question", EXAMPLE)
    *documents, question = arguments
    if question == "-" or _is_file(question):
        raise UsageError(f"the question is missing: {question} is a document", EXAMPLE)
    if not documents and not library:
        raise UsageError(f"the document is missing, or the question behind {question!r}", EXAMPLE)
    if not question.strip():
        raise UsageError("the question is empty", EXAMPLE)
    return documents, question


def _is_file(text: str) -> bool:
    try:
        return bool(text) and Path(text).exists()
    except (OSError, ValueError):  # too long for a path, as questions may be
        return False


def prepare(request: Request, reporter: Reporter) -> Prepared:
    """Checks everything that can be checked without the model's weights.

    Raises:
        PresetError, DocumentError, ModelError, UsageError.
    """
    chosen = preset.load(request.preset, request.overrides)
    models.parse_reference(chosen.model)
    text = join(books.read(request.documents, reporter).documents)
    reporter.stage("import", 0, None)
    from esa_cli.qa import build_method as build

    build.method(chosen)
    model = known.look(chosen, known.Place.of(request.device, request.dtype), reporter)
    estimate = model.plan(chosen, model.tokens(text))
    return Prepared(chosen, text, model.config, estimate, model.folder)


def load(ready: Prepared, request: Request, reporter: Reporter) -> Any:
    """The model and its tokenizer. Raises ModelError, ResourceError."""
    return known.load(ready.preset.model, ready.folder, request.device, request.dtype, reporter)
