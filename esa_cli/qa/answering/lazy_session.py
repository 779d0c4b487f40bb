"""A model with its preset, and the session of both, which is made when it is first needed.

Answers from text need none. Making one attaches the method to the model of transformers, which a
`DeferredModel` first has to load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

from esa_cli.errors import UsageError
from esa_cli.models import DeferredModel, LoadedModel
from esa_cli.models.attachment.families import keeps_state
from esa_cli.models.loading.load import hindrance
from esa_cli.qa.answering.prompt import PromptTokens
from esa_cli.qa.books import Book
from esa_cli.qa.planning.row_storage import check_asked_together
from esa_cli.qa.presets.cache_key import model_facts
from esa_cli.qa.presets.resolved_preset import ResolvedPreset, check_fits_model

if TYPE_CHECKING:  # it imports transformers' models
    from esa_cli.qa.answering.session import Session


class LazySession:
    """What answers from text and the library need of a model with a preset.

    Args:
        text_model: finds and reads passages. tokenizer: of transformers. model: returns the model
            of transformers, bare unless there is a session. session: makes this.

    Raises:
        ModelError: the model's chat template loses the prompt. PresetError: the method was made for
            another model.
    """

    def __init__(
        self,
        text_model: Any,
        tokenizer: Any,
        resolved: ResolvedPreset,
        *,
        model: Callable[[], Any],
        session: Callable[[], Session],
    ) -> None:
        self.text_model, self.tokenizer = text_model, tokenizer
        self.preset, self.method = resolved.preset, resolved.method
        self.prompt = PromptTokens(tokenizer, self.preset.prompt)
        check_fits_model(self.method, text_model)
        self._model, self._make = model, session
        self._made: Session | None = None
        self._cached: list[Book] = []
        """Books whose rows are in the session's cache."""
        self.attaches = True
        """Whether a session can be made; else the model reads passages, and nothing else."""

    @classmethod
    def of(cls, loaded: LoadedModel | DeferredModel, resolved: ResolvedPreset) -> LazySession:
        """That of a model; the session of one that transformers has loaded is made at once, unless
        ESA's methods cannot run in it and the preset needs none.

        Raises:
            As the class, and `Session`.
        """

        def make() -> Session:
            from esa_cli.qa.answering.session import Session

            return Session(loaded.model, loaded.tokenizer, resolved, loaded.cache)

        lazy = cls(
            loaded.text_model, loaded.tokenizer, resolved,
            model=lambda: loaded.model, session=make,
        )  # fmt: skip
        if isinstance(loaded, LoadedModel):
            lazy.attaches = not (resolved.preset.answer.by_words and hindrance(loaded.model.config))
            if lazy.attaches:
                lazy._made = make()
        return lazy

    @classmethod
    def around(cls, session: Session) -> LazySession:
        """That of a session, with its preset."""
        lazy = cls(
            session.model, session.tokenizer, ResolvedPreset(session.preset, session.method),
            model=lambda: session.model, session=lambda: session,
        )  # fmt: skip
        lazy._made = session
        return lazy

    @property
    def model(self) -> Any:
        """The model of transformers; within `suspended` nothing is attached to it. Raises
        ModelError, ResourceError: it cannot be loaded."""
        return self._model()

    @property
    def session(self) -> Session:
        """The session, made now if there is none. Raises: as `of`."""
        if self._made is None:
            self._made = self._make()
        return self._made

    @cached_property
    def facts(self) -> dict[str, Any]:
        """See `model_facts`, which take a moment: only what looks in a library needs them."""
        return model_facts(self.text_model, self.tokenizer)

    @property
    def window(self) -> int:
        """Tokens that the model is given at once: the preset's `context`, or fewer where the model
        has fewer positions, as one may that only reads passages."""
        longest = getattr(self.text_model.config, "max_position_embeddings", None)
        return min(self.preset.context, longest or self.preset.context)

    def check_asked_together(self) -> None:
        """Raises UsageError where several documents cannot be asked at once."""
        config = self.text_model.config
        check_asked_together(self.preset, self.method, config.model_type, keeps_state(config))

    @property
    def document_tokens(self) -> int:
        """Tokens in the session's cache."""
        return 0 if self._made is None else self._made.document_tokens

    def forget(self) -> None:
        """The session's cache is used for something else than books."""
        self._cached = []

    def use(self, books: Sequence[Book]) -> None:
        """Puts the rows of books into the session's cache, unless they are there. Raises
        UsageError: one has not been read."""
        if [id(mine) for mine in self._cached] == [id(yours) for yours in books]:
            return
        self._cached = []
        prefilled = [book.prefilled for book in books if book.prefilled]
        if len(prefilled) < len(books):
            raise UsageError("a document has not been read", "ingest it first")
        self.session.open(prefilled)
        self._cached = list(books)

    def suspended(self) -> AbstractContextManager[None]:
        """The bare model until the block ends; see `Attachment.suspended`."""
        return nullcontext() if self._made is None else self._made.attachment.suspended()

    def close(self) -> None:
        """Restores the model, if there is a session."""
        if self._made is not None:
            self._made.close()
