"""Checks of a command before a model's weights are loaded: the method, the model's small files, and
the memory that documents will take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from esa_cli.apps.cli.model_choice.known_model import KnownModel, inspect_model
from esa_cli.apps.cli.model_choice.model_place import ModelPlace
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.errors import UsageError
from esa_cli.qa.presets.preset import Preset

if TYPE_CHECKING:
    from esa_cli.documents.document import Document
    from esa_cli.qa.books import TokenisedDocument
    from esa_cli.qa.finding.load_encoder import FinderSizes
    from esa_cli.qa.planning.plan import Planner
    from esa_cli.qa.presets.resolved_preset import ResolvedPreset


@dataclass(frozen=True)
class Preflight:
    """The preset, method, model files and plan of a command, before the model is loaded."""

    resolved: ResolvedPreset
    model: KnownModel
    planner: Planner
    index: FinderSizes | None = None
    """Of the token index for which documents are read; None: their rows are, or nothing is."""
    texts: Sequence[TokenisedDocument] = ()
    """The documents, where the method is made for their length."""

    def keeps(self, asked: bool | None) -> bool:
        """Whether what is read is stored: as asked, else what is read for an index, which is
        small and takes long to read."""
        return self.index is not None if asked is None else asked


def prepare(
    chosen: Preset,
    options: ModelOptions,
    reporter: Reporter,
    *,
    method: str | None = None,
    documents: Sequence[Document] = (),
    keep: bool | None = None,
    attaches: bool = False,
) -> Preflight:
    """Builds the method, fetches the model's small files, and holds the preset to them.

    Args:
        method: a whole method over the preset; it may be made for the length of `documents`.
        keep: whether what is read will be stored in the library; see `Preflight.keeps`.
        attaches: whether ESA's methods must be able to run in the model, whatever the preset is.

    Raises:
        UsageError: what is read cannot be stored, a kernel cannot run here, or no such method.
        PresetError, PluginError.
        ModelError: the model is missing or not supported.
    """
    reporter.stage("import", 0, None)
    from esa_cli.qa.finding.load_encoder import index_sizes
    from esa_cli.qa.presets.adapter_files import check_adapter
    from esa_cli.qa.presets.method_presets import stretches
    from esa_cli.qa.presets.resolved_preset import resolve

    model, texts = None, list[Any]()
    if method is not None and documents and stretches(method, chosen):
        model = inspect_model(chosen, ModelPlace.of(options), reporter)
        texts = model.tokenise(documents)
    resolved = resolve(chosen, method=method, length=sum(len(text.ids) for text in texts))
    check_adapter(resolved.preset.answer)
    index = index_sizes(resolved.preset)
    answer = resolved.preset.answer
    runs = attaches or answer.needs_rows or (index is None and bool(keep))
    attaches = runs or not answer.by_words
    model = model or inspect_model(chosen, ModelPlace.of(options), reporter, attaches)
    if runs:
        model.check_kernels(resolved)
    if index is None and (keep or (options.cache == "disk" and not answer.by_words)):
        _check_storable(resolved)
    planner = model.planner(resolved, index, by_words=index is None and not runs)
    return Preflight(resolved, model, planner, index, texts)


def _check_storable(resolved: ResolvedPreset) -> None:
    from esa_cli.qa.ingestion.archive import hindrance

    if why := hindrance(resolved.method):
        refused = f"what is read cannot be kept in the library: {why}"
        raise UsageError(refused, "ask without keeping, or with another method")
