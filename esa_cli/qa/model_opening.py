"""Loads what an `Esa` is made of: a preset's model, the plan of its memory, and another reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from esa_cli import models
from esa_cli.models.files.resolve import peek
from esa_cli.models.loading.load import choose_device, choose_dtype, runs_methods
from esa_cli.models.loading.quantization import packing_of
from esa_cli.models.loading.text_part import language_settings
from esa_cli.qa.finding.finder import index_sizes
from esa_cli.qa.planning.plan import Planner
from esa_cli.qa.presets.adapter_files import check_adapter
from esa_cli.qa.presets.resolved_preset import ResolvedPreset, check_runs_on, resolve
from esa_cli.qa.second_model.answer_reader import AnswerReader
from esa_cli.qa.second_model.reader_choice import ReaderChoice, check_passages_for, reader_of
from esa_cli.system import machine


class OpenModel(NamedTuple):
    """A model in memory, its preset, the memory that documents may take, and another reader."""

    loaded: models.LoadedModel | models.DeferredModel
    resolved: ResolvedPreset
    planner: Planner
    reader: AnswerReader | None


def open_model(
    name: str,
    overrides: Sequence[str],
    method: str | None,
    length: int,
    device: str,
    dtype: str,
    choice: ReaderChoice | None,
    cache: str,
) -> OpenModel:
    """Arguments and errors: as `api.Esa.load`."""
    given = overrides if choice is None else [*overrides, "answer.from=text"]
    resolved, place = resolve(name, given, method, length), choose_device(device)
    choice = choice or reader_of(resolved.preset)
    says = method is not None or resolved.preset.answer.says_source
    if not says and not runs_methods(peek(resolved.preset.model)):
        resolved = resolve(name, [*given, "answer.from=text"])
    check_passages_for(choice, resolved.preset)
    check_adapter(resolved.preset.answer)
    _check_kernels(resolved, place, dtype)
    memory, index = machine.available_memory(place), index_sizes(resolved.preset)
    load = models.load if index is None else models.load_for_text
    loaded = load(resolved.preset.model, device=place, dtype=dtype, cache=cache)
    other = None if choice is None else choice.open(device, dtype)
    planner = Planner(
        resolved, loaded.folder, dtype=loaded.dtype, device=place,
        memory=memory - (0 if other is None else other.nbytes), index=index, cache=cache,
        packing=packing_of(dtype),
    )  # fmt: skip
    return OpenModel(loaded, resolved, planner, other)


def _check_kernels(resolved: ResolvedPreset, device: str, dtype: str) -> None:
    """Raises UsageError where the method runs and a kernel that it names cannot, before the weights
    are fetched or loaded."""
    method = resolved.method
    if method.kernel != "auto" and resolved.preset.answer.needs_rows:
        config = language_settings(peek(resolved.preset.model))
        check_runs_on(method, config, device, choose_dtype(dtype, device))
