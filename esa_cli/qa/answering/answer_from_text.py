"""Answers a question from passages that are found and read again as text.

    question -> PassageFinder -> PassageReader: log-odds, span -> answer, or `NOT_TOLD`

Of what a model reads of the documents, finding alone uses a token index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esa_cli.errors import LengthError
from esa_cli.models.generation import Streamer, end_ids, generate
from esa_cli.models.text_passes.lora_adapter import LoraAdapter
from esa_cli.qa.answering.lazy_session import LazySession
from esa_cli.qa.answering.question_form import wants_free_text
from esa_cli.qa.answering.reply import NOT_TOLD, says_not_told
from esa_cli.qa.books import PlacedBook
from esa_cli.qa.finding.passage_growth import grown
from esa_cli.qa.finding.passages_apart import FoundPassage
from esa_cli.qa.finding.unmentioned_names import small_words
from esa_cli.qa.passage_search import PassageSearch
from esa_cli.qa.presets.adapter_files import adapter_folder
from esa_cli.qa.reading.passage_prompt import PassagePrompt, clipped, one_line
from esa_cli.qa.reading.passage_reader import PassageReader
from esa_cli.qa.reading.read_passages import ReadPassage, ordered, read_passages
from esa_cli.qa.second_model.answer_reader import WrittenAnswer

ROOM = 1024
"""Tokens for the passages and the answer."""
SPANS = 3
"""Passages whose most probable span is looked for."""
FREE_PASSAGES = 4
"""Passages that free text is written from."""
UNMENTIONED = 4.5
"""Log-odds that a name costs which no document mentions. Of 41 questions that the chronicle does
not answer 28 are noticed with 3, 32 with 4, 33 with 4.5 and 5, and 34 where nothing outweighs it;
none of the 56 others is lost with any. The reader's own log-odds are below 3 for all 41."""


@dataclass(frozen=True)
class TextAnswer:
    """An answer, the passages it rests on, best first, with shares of the weight that sum to 1.

    `found`: whether a passage seems to tell it. `span`: the answer's characters in the document of
    the first passage. `tokens`: of the answer. `cut`: free text that ended at the longest allowed.
    """

    text: str
    passages: tuple[FoundPassage, ...]
    weights: tuple[float, ...]
    found: bool
    tokens: int
    span: tuple[int, int] | None = None
    cut: bool = False


class TextAnswers:
    """Answers from text with one model and the settings of its preset.

    Args:
        lazy: the model, which is bare while it answers, and its preset. search: what finds the
            passages; None: by their words alone.

    Raises:
        ModelError: the adapter cannot be read, or is of another model.
    """

    def __init__(self, lazy: LazySession, search: PassageSearch | None = None) -> None:
        model, settings, context = lazy.text_model, lazy.preset.answer, lazy.window
        self.settings, self._lazy, self._prompt = settings, lazy, lazy.prompt
        self.search = search or PassageSearch()
        self._context, self._small = context, small_words(lazy.tokenizer)
        adapter = None
        if settings.adapter is not None:
            adapter = LoraAdapter.load(adapter_folder(settings.adapter), model)
            adapter.to(next(model.parameters()))
        passages = PassagePrompt(
            lazy.tokenizer, settings.prompt, settings.unanswered, settings.shown_examples
        )
        self.reader = PassageReader(model, passages, adapter, context, fixed=True)

    def check(self, question: str, max_new_tokens: int) -> int:
        """Tokens of the question in the preset's prompt, checked to leave room for passages.

        Args:
            max_new_tokens: of free text; spans are short.

        Raises:
            UsageError: it is empty, or no text. LengthError: it is too long.
        """
        tokens = len(self._prompt.question(question))
        need = max(tokens, len(self.reader.prompt.ids(question, "")))
        need += min(ROOM, self._context // 2)
        need += max_new_tokens if self._free(question) else 0
        if need > self._context:
            raise LengthError(
                f"the question, a passage and the answer take {need:,} tokens; the model's window "
                f"has {self._context:,}",
                "ask a shorter question, or for a shorter answer",
            )
        return tokens

    def _free(self, question: str) -> bool:
        form = self.settings.form
        return form == "text" or (form == "auto" and wants_free_text(question))

    @torch.inference_mode()
    def answer(
        self,
        question: str,
        books: Sequence[PlacedBook],
        *,
        earlier: str = "",
        votes: Sequence[Tensor | None] = (),
        max_new_tokens: int = 64,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int | None = None,
        on_text: Callable[[str], None] | None = None,
        write: Callable[[Sequence[FoundPassage]], WrittenAnswer] | None = None,
    ) -> TextAnswer:
        """Answers one question about the books.

        Args:
            earlier: text of earlier turns that the question refers to. votes: of
                `PassageSearch.votes`.
            max_new_tokens, temperature, top_p, seed: of free text; spans are always the most
                probable.
            on_text: called with each piece of the answer's text. write: another model's answer from
                the passages, best first.
        """
        finder = self.search.finder(books)
        read = self._read(question, books, earlier, votes, SPANS if write is None else 0)
        weights = torch.tensor([one.score for one in read]).softmax(0).tolist()
        passages = tuple(one.found for one in read)
        threshold, told = self.settings.threshold, bool(read) and read[0].span is not None
        if threshold is not None and told:
            doubt = UNMENTIONED * finder.unmentioned(question, self._small)
            told = read[0].log_odds - doubt >= threshold
        if write is not None and passages:
            made = write(passages)
            told = not says_not_told(made.text)
            return TextAnswer(made.text, passages, tuple(weights), told, made.tokens, cut=made.cut)
        if read and self._free(question):
            shown = "\n\n".join(one.text for one in read[:FREE_PASSAGES])
            said = Streamer(self._prompt.tokenizer, on_text)
            self._free_text(question, shown, said, max_new_tokens, temperature, top_p, seed)
            cut = said.count >= max_new_tokens and said.last not in end_ids(self._lazy.model)
            return TextAnswer(
                said.text.strip(), passages, tuple(weights), told, said.count, cut=cut
            )
        answer = TextAnswer(NOT_TOLD, passages, tuple(weights), False, 0)
        if told and (span := read[0].span) is not None:
            quoted, start = read[0].text[span.start : span.end], passages[0].start
            place = start + span.start, start + span.end
            tokens = len(self.reader.prompt.answer_ids(quoted)) - 1
            answer = TextAnswer(one_line(quoted), passages, tuple(weights), True, tokens, place)
        if on_text:
            on_text(answer.text)
        return answer

    def _read(
        self,
        question: str,
        books: Sequence[PlacedBook],
        earlier: str,
        votes: Sequence[Tensor | None],
        spans: int,
    ) -> list[ReadPassage]:
        """The passages that were found and read, that of the best span first.

        Args:
            spans: passages of a round whose most probable span is looked for.
        """
        settings, finder = self.settings, self.search.finder(books)
        texts = [book.document.text for book in books]

        def read_round(
            count: int, earlier: str, asked: str, apart: Sequence[FoundPassage] = ()
        ) -> list[ReadPassage]:
            found = finder.find(
                question, count, earlier=earlier, reduced=self.search.reduced(asked, books),
                votes=votes, weight=settings.votes, apart=apart,
            )  # fmt: skip
            if settings.grow:
                found = grown(texts, found, settings.grow)
            shown = [texts[one.document][one.start : one.end] for one in found]
            return read_passages(
                self.reader, question, found, shown, prior=settings.prior, spans=spans
            )

        asked = f"{earlier} {question}".strip()
        later = settings.passages // 2 if settings.rounds == 2 else 0
        read = read_round(settings.passages - later, earlier, asked)
        if later and read:
            best = read[0]
            more = read_round(
                later, f"{earlier} {best.text}", f"{asked} {best.quoted_sentences}",
                [one.found for one in read],
            )  # fmt: skip
            read = ordered([*read, *more])
        return read

    def _free_text(
        self, question: str, passages: str, streamer: Streamer, most: int, heat: float,
        top_p: float, seed: int | None,
    ) -> None:  # fmt: skip
        """Streams an answer in the bare model's own words."""
        prompt = self._prompt
        asked = prompt.question(question)
        room = self._context - len(asked) - most
        passages = clipped(passages, room, lambda text: len(prompt.document(text)))
        generate(
            self._lazy.model, prompt.document(passages) + asked, None,
            max_new_tokens=most, temperature=heat, top_p=top_p, seed=seed, streamer=streamer,
        )  # fmt: skip
