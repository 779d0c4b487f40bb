"""A session: read a document once, ask as often as you like.

The document's keys and values stay in the cache; each question is asked behind it and taken back.
Everything below this layer knows nothing of text, files or people.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from . import build
from .asked import Asked
from .calibrate import fingerprint
from .errors import PresetError, UsageError
from .held import Held, join
from .models.quiet import quiet_transformers
from .preset import Preset
from .prompt import PromptTokens
from .protocols import Projection
from .reply import Turn
from .seam import Attachment, attach
from .step import OWN, REHEARSAL
from .streamer import Streamer

FEED = 1024
"""Tokens handed to the host model at once while reading; the method cuts them into its chunks.
Measured on 2 cores: 512 to 1,024 is best, larger activations leave the cache."""


@dataclass(frozen=True)
class Answer:
    """One answer and what it took. Times in seconds; `cut` when it reached the longest allowed."""

    text: str
    question_tokens: int
    answer_tokens: int
    first_token_s: float
    total_s: float
    cut: bool = False


@dataclass
class Session:
    """Asks questions about one document with one attached model.

    Use as a context manager: the model is put back as it was on leaving.

    Args:
        model, tokenizer: of transformers. preset: method, prompt and generation settings.

    Raises:
        ModelError: the model cannot be supported. PresetError: the method does not hold, or its
            compressor was made for another model.
    """

    model: Any
    tokenizer: Any
    preset: Preset
    attachment: Attachment = field(init=False)

    def __post_init__(self) -> None:
        self.prompt = PromptTokens(self.tokenizer, self.preset.prompt)
        method = build.method(self.preset)
        fingerprint.check(method.compressor, self.model, method)
        self.attachment = attach(self.model, method)
        self.cache = self.attachment.new_cache()
        self._read_by = self.attachment.method
        self._ids: list[int] = []
        self._todo: list[int] = []

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Puts the model back as it was."""
        self.attachment.detach()

    def use(self, preset: Preset) -> None:
        """Asks from now on with another preset of the same model; what was read is kept.

        Only settings of the asking take effect: the keys were made by the old reading.

        Raises:
            PresetError: the method does not hold, or needs another fitted compressor.
        """
        old, new = self._read_by, build.method(preset)
        fingerprint.check(new.compressor, self.model, new)
        fits = new.score.features and new.compressor.fit_tokens > 0
        other = new.score.features and new.fitting != old.fitting
        if self._ids and (other or (fits and not old.score.features)):
            raise PresetError(
                "the document was read for another compressor", "read it again with this preset"
            )
        self.attachment.method = new
        self.prompt = PromptTokens(self.tokenizer, preset.prompt)
        self.preset = preset

    def forget(self) -> None:
        """Drops what was read, and frees its memory."""
        self.cache = self.attachment.new_cache()
        self._ids, self._todo = [], []

    def held(self) -> Held:
        """What was read, to be opened later by this session or another of the same model."""
        stores = [self.cache.memory(i).store for i in range(len(self.cache.own))]
        return Held(list(self._ids), stores, self.project())

    def project(self) -> list[Projection | None]:
        """Computes the reduced keys of all that was read; the fitted compressor of each layer."""
        self.cache.project()
        return [self.cache.memory(i).projection for i in range(len(self.cache.own))]

    def open(self, documents: Sequence[Held]) -> None:
        """Asks from now on about these documents, as one; what was read before is let go.

        Raises:
            UsageError: there is none.
        """
        if not documents:
            raise UsageError("no document to ask about", "read one first")
        self.forget()
        self._read_by = self.attachment.method
        self._ids, stores, projections = join(documents, len(self.prompt.head()))
        self._todo = self._ids
        self.cache.hold(stores, projections)

    @property
    def document_tokens(self) -> int:
        """Tokens read so far, the prompt's head included."""
        return len(self._ids)

    @torch.inference_mode()
    def read(self, text: str, progress: Callable[[int, int], None] | None = None) -> None:
        """Reads a document; what was read before is forgotten.

        An interruption (Ctrl-C) leaves the session with the tokens read so far, ready for
        `resume`.

        Args:
            text: the whole document. progress: called with (tokens read, tokens in all).
        """
        self.begin(self.prompt.document(text))
        self.resume(progress)

    def begin(self, ids: list[int], done: Held | None = None) -> None:
        """Makes ready to read these ids; `resume` reads them.

        Args:
            ids: of `prompt.document`. done: what was read of them before, by the same method; its
                stores are read on into.
        """
        self.forget()
        self._read_by = self.attachment.method
        self._todo = ids
        if done is not None:
            self._ids = ids[: len(done.ids)]
            self.cache.hold(done.stores, done.projections if done.ids else None)

    @torch.inference_mode()
    def resume(
        self,
        progress: Callable[[int, int], None] | None = None,
        settle: Callable[[int], None] | None = None,
    ) -> None:
        """Goes on reading after an interruption.

        Args:
            settle: called with the tokens read, all of them in the cache, after every FEED.
        """
        ids, done = self._todo, len(self._ids)
        self.cache.mode = "reading"
        self.cache.truncate(done)
        try:
            while done < len(ids):
                piece = torch.tensor([ids[done : done + FEED]], device=self.model.device)
                self.model.base_model(input_ids=piece, past_key_values=self.cache)
                self._ids.extend(ids[done : done + FEED])
                done = len(self._ids)
                if settle:
                    settle(done)
                if progress:
                    progress(done, len(ids))
            self.cache.project()
        finally:
            self.cache.truncate(len(self._ids))

    @torch.inference_mode()
    def ask(
        self,
        question: str,
        *,
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        seed: int | None = None,
        prime: str = "",
        top_p: float | None = None,
        history: Sequence[Turn] = (),
        on_text: Callable[[str], None] | None = None,
    ) -> Answer:
        """Asks one question; the cache is afterwards what it was before, interrupted or not.

        Args:
            prime: the first words of the answer, put into the model's mouth; not in what returns.
            max_new_tokens, temperature, top_p: None takes the preset's. Temperature 0 is greedy.
            seed: for sampling. history: earlier turns. on_text: called with each piece of the
                answer as it comes.

        Raises:
            UsageError: nothing has been read, the question is empty, or with the turns before it
                longer than the model's window allows.
        """
        if not self._ids:
            raise UsageError("no document has been read", "call read(text) first")
        settings = self.preset.generation
        tokens = max_new_tokens or settings.max_new_tokens
        heat = settings.temperature if temperature is None else temperature
        asked = Asked.of(self.prompt, question, prime, history, len(self._ids))
        asked.check(self.preset, tokens)
        if seed is not None:
            torch.manual_seed(seed)
        length, started = len(self._ids), time.perf_counter()
        streamer = Streamer(self.tokenizer, on_text)
        self.cache.mode = "asking"
        ids = torch.tensor([self._ids + asked.before + asked.ids], device=self.model.device)
        nucleus = settings.top_p if top_p is None else top_p
        sampling = {"temperature": heat, "top_p": nucleus, "top_k": 0} if heat > 0 else {}
        try:
            # transformers would warn that the text is longer than the window, which is the point.
            with quiet_transformers():
                self._remind(asked.before)
                self._rehearse(asked.ids, asked.own)
                self.model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    past_key_values=self.cache,
                    max_new_tokens=tokens,
                    do_sample=heat > 0,
                    streamer=streamer,
                    **sampling,
                )
        finally:
            self.cache.truncate(length)
            self.cache.shared.clear()
        return Answer(
            text=streamer.text.strip(),
            question_tokens=len(asked.ids),
            answer_tokens=streamer.count,
            first_token_s=(streamer.first or time.perf_counter()) - started,
            total_s=time.perf_counter() - started,
            cut=streamer.count >= tokens,
        )

    def _remind(self, before: list[int]) -> None:
        """Reads the earlier turns, apart from the question: it is what selects for its answer."""
        if before:
            ids = torch.tensor([before], device=self.model.device)
            self.model.base_model(input_ids=ids, past_key_values=self.cache)

    def _rehearse(self, asked: list[int], own: tuple[int, int]) -> None:
        """Tells the layers which words are the question's own; and where the selector wants it,
        lets them read the question once, so that the first layers know what the last ones found.
        """
        self.cache.shared[OWN] = own
        selector: Any = self.attachment.method.selector
        if getattr(selector, "rounds", 1) < 2:
            return
        self.cache.shared[REHEARSAL] = True
        length = self.cache.get_seq_length()
        ids = torch.tensor([asked], device=self.model.device)
        self.model.base_model(input_ids=ids, past_key_values=self.cache)
        kept = selector.again(self.cache.shared)
        self.cache.truncate(length)
        self.cache.shared.pop(REHEARSAL, None)
        self.cache.shared |= {OWN: own, **kept}
