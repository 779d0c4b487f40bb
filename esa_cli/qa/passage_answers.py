"""Answers questions from passages that are found and read, and says what is doubtful about it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from esa_cli.documents.outline import find_place
from esa_cli.qa import sections
from esa_cli.qa.answering.passage_choice import find_cited_numbers, is_quoted
from esa_cli.qa.answering.question_parts import join_replies, split_question
from esa_cli.qa.answering.reply import (
    NEEDS_READER,
    Reply,
    Turn,
    find_last_answered_turn,
    repeats_answer,
)
from esa_cli.qa.answering.sentence_check import AnswerCheck
from esa_cli.qa.evidence import compute_passage_weights
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.finding.passage_finder import Book
from esa_cli.qa.finding.words import make_lowercase_predicate
from esa_cli.qa.reading.reader import MAX_PASSAGES, Reader, SamplingParams
from esa_cli.system.progress import Progress
from esa_cli.system.text import find_content_words

ALONE = 1.0
"""The log-odds that uncertain answers without the last turn lose; benchmarks/conversation.py."""
THOROUGH = 32
"""The fewest passages read for a thorough answer; 64 answer no more development questions."""


class PassageAnswerer:
    """Answers questions with the search and the readers of an `Esa`."""

    def __init__(self, esa: Any) -> None:
        self.esa, self.is_usually_lowercase = esa, make_lowercase_predicate(esa.tokenizer)

    def answer(
        self, question: str, books: Sequence[Book], history: Sequence[Turn],
        sampling: SamplingParams, *, evidence: int, on_text: Callable[[str], None] | None,
        thorough: bool, progress: Progress | None, started: float,
    ) -> tuple[Reply, Tensor]:  # fmt: skip
        """Answers as `Esa.ask` describes, a question that was asked at the time `started`; also
        returns the weights (N,) of the N tokens of all documents."""
        esa, first = self.esa, list[float]()
        parts = [] if esa.reader is not None else split_question(question)
        if len(parts) > 1:
            options = {"evidence": evidence, "thorough": thorough, "progress": progress}
            return self._answer_parts(parts, books, history, sampling, on_text, options)

        def forward_text_piece(text_piece: str) -> None:
            first.append(time.perf_counter())
            if on_text is not None:
                on_text(text_piece)

        asked = esa.spans.count_question_tokens(question)
        about = self._answer_about_section(question, books, sampling, forward_text_piece, progress)
        if about is not None:
            reply, shown, questions = about, about.evidence, [question]
        else:
            passages = self._rank_passages(question, books, history, thorough, progress)
            reader: Reader = esa.reader if esa.reader and passages else esa.spans
            with esa.run_without_method():
                reply = reader.answer(question, passages, history, sampling, forward_text_piece)
            reply = replace(reply, evidence=tuple(passages), answered_from="text")
            shown = reply.evidence[:MAX_PASSAGES]
            questions = [*(turn.question for turn in history), question]
        if esa.reader is not None and reply.certainty is None:  # the other model wrote the answer
            score = partial(esa.search.score_passages, passages=shown, books=books)
            check = AnswerCheck(reply.text, questions, shown, self.is_usually_lowercase, score)
            with esa.run_without_method():
                reply = replace(reply, sentences=check.check_sentences())
        passages, weights = compute_passage_weights(reply.evidence, books)
        if (quoted := reply.quotation) is not None:
            by_name = {book.document.name: book.document for book in books}
            place = find_place(by_name[quoted.document], quoted.start)._asdict()
            passages = [replace(p, **place) if is_quoted(p, quoted) else p for p in passages]
        cited = [number for number in find_cited_numbers(reply) if number <= len(shown)]
        count = max([evidence, *cited]) if evidence else 0
        reply = replace(
            reply, evidence=tuple(passages[:count]), question_tokens=asked,
            first_token_s=(first or [started])[0] - started,
            total_s=time.perf_counter() - started,
            read=all(book.index is not None for book in books),
        )  # fmt: skip
        if about is None or about.found:  # else it says which chapter is missing
            reply = self._add_doubts(reply, question, books)
        return reply, weights

    def _add_doubts(self, reply: Reply, question: str, books: Sequence[Book]) -> Reply:
        """Returns a reply with the missing words and names of a question that has no certain
        answer, and with the foreign languages of the documents that are quoted or shown."""
        finder = self.esa.search.get_passage_finder(books)
        certainty = "answer" if reply.text == NEEDS_READER else reply.certainty
        missing = [] if certainty == "answer" else finder.index.list_missing_words(question)
        lowercase = self.is_usually_lowercase
        names = finder.list_names(question, lowercase) if certainty == "nothing" else []
        cited = {one.document for one in reply.quotations or reply.evidence}
        return replace(
            reply, missing_words=tuple(missing), names=tuple(names),
            foreign_languages=tuple(finder.list_foreign_languages(cited)),
        )  # fmt: skip

    def _answer_parts(
        self, parts: Sequence[str], books: Sequence[Book], history: Sequence[Turn],
        sampling: SamplingParams, on_text: Callable[[str], None] | None, options: dict[str, Any],
    ) -> tuple[Reply, Tensor]:  # fmt: skip
        """Answers the parts of a question, each after the one before, and joins their answers."""
        answers, turns = list[tuple[Reply, Tensor]](), [*history]
        for part in parts:
            options |= {"on_text": None, "started": time.perf_counter()}
            answers.append(self.answer(part, books, turns, sampling, **options))
            turns.append(Turn(part, part))  # what answers it is no part of the next question
        replies, weights = zip(*answers, strict=True)
        reply = join_replies(parts, replies, options["evidence"])
        if on_text is not None:
            on_text(reply.text_with_certainty)
        return reply, sum(weights[1:], weights[0]) / len(weights)

    def _answer_about_section(
        self, question: str, books: Sequence[Book], sampling: SamplingParams,
        on_text: Callable[[str], None], progress: Progress | None,
    ) -> Reply | None:  # fmt: skip
        """Answers a request for the contents of a section; returns None for other questions."""
        esa, documents = self.esa, [book.document for book in books]
        if esa.preset.answer.form == "span":
            return None
        asked = sections.find_asked_section(question, documents)
        if asked is None:
            text = sections.describe_missing_section(question, documents)
            if not text:
                return None
            on_text(text)
            return Reply(text, found=False, certainty="nothing", answered_from="text")
        book = books[asked.document]
        library = esa.documents.library if esa.documents.keep else None
        with esa.run_without_method():
            if esa.reader is None:
                return sections.quote_section(esa.search, book, asked)
            folder = library.root / "summaries" if library and library.exists else None
            return sections.summarise_section(
                esa.reader, question, book.document, asked.section, sampling, on_text,
                folder=folder, progress=progress,
            )  # fmt: skip

    def _rank_passages(
        self, question: str, books: Sequence[Book], history: Sequence[Turn], thorough: bool,
        progress: Progress | None,
    ) -> list[Passage]:  # fmt: skip
        """Finds and reads passages for a question; the most probable span comes first.

        If that is not certain, passages that are found for the last turn and the question are read
        as well, alone and after the last question; a span that then repeats the last answer answers
        only the last question. Questions without content words ("Why?") are only read that way."""
        esa, finder = self.esa, self.esa.search.get_passage_finder(books)
        count = max(esa.preset.answer.passages, THOROUGH * thorough)
        reranker = esa.load_reranker() if thorough else None
        texts = {document.name: document.text for document in finder.documents}
        scorer = None if reranker is None else partial(reranker.score_passages, progress=progress)

        def find_and_read(searched: str, asked: str) -> list[Passage]:
            with esa.run_without_method():
                found = esa.search.find_passages_to_read(searched, books, count, scorer)
                unmentioned = finder.rate_unmentioned_names(asked, self.is_usually_lowercase)
                named = finder.find_named_documents(searched)
                options = unmentioned, progress, named, texts
                read: list[Passage] = esa.spans.rank_passages(asked, found, *options)
                return read

        passages, last = list[Passage](), find_last_answered_turn(history)
        if last is None or all(find_content_words(question, one) for one in finder.index.languages):
            passages = find_and_read(question, question)
            best = passages[0].probability if passages else None
            is_certain = esa.spans.combination.get_certainty(best or 0.0) == "answer"
            if is_certain or last is None:
                return passages
        turn, both = f"{last.question} {last.answer} {question}", f"{last.question} {question}"
        by_place = {(one.document, one.start): (one.score - ALONE, one) for one in passages}
        for searched, asked in ((turn, question), (both, both)):
            for one in find_and_read(searched, asked):
                start, end = one.quote or (one.start, one.start)
                quoted = one.text[start - one.start : end - one.start]
                if asked == question or not repeats_answer(quoted, last.answer):
                    place, other = (one.document, one.start), (one.score, one)
                    by_place[place] = max(by_place.get(place, other), other, key=lambda one: one[0])
        return [one for _, one in sorted(by_place.values(), key=lambda one: -one[0])]
