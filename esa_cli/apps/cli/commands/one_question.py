"""`esa ask` with one question: its answer, and where documents have not been read, that after
reading."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from esa_cli.apps.cli.options.output_paths import write
from esa_cli.apps.cli.output.answer_output import AnswerStream, Timing, as_dict, show_under, summary
from esa_cli.apps.cli.output.terminal import Reporter, clean, print_json
from esa_cli.apps.cli.output.word_wrap import wrapped_text

if TYPE_CHECKING:
    from esa_cli.apps.cli.commands.ask_request import AskRequest
    from esa_cli.documents.document import LeftOut
    from esa_cli.qa.answering.reply import Reply
    from esa_cli.qa.api import Esa
    from esa_cli.qa.books import Book


class OneQuestion:
    """The question of an `esa ask`, to be asked about books.

    Args:
        left_out: of the documents, for the JSON object. timing: with the seconds until now.
        searched: documents whose words were searched, if fewer were opened.
    """

    def __init__(
        self,
        esa: Esa,
        request: AskRequest,
        left_out: Sequence[LeftOut],
        reporter: Reporter,
        timing: Timing,
        searched: int = 0,
    ) -> None:
        self.esa, self.request, self.left_out = esa, request, left_out
        self.reporter, self.timing, self.searched = reporter, timing, searched

    def answer(self, books: Sequence[Book]) -> None:
        """Answers about these books as they are, and writes what is asked for."""
        if self.request.options.as_json:
            reply = self._reply(books, None)
            print_json(self._as_dict(reply, books))
        else:
            reply = self._streamed(books)
            self.reporter.note(summary(self._as_dict(reply, books)))
        self._report(reply, books)

    def answer_and_read(
        self,
        books: Sequence[Book],
        read: Callable[[], Sequence[Book]],
        stored: Callable[[], int | None],
    ) -> None:
        """Answers at once, reads what has not been read, and shows the answer after that where it
        is another one. What ends the reading leaves the first answer, and its report.

        Args:
            read: reads the books. stored: tokens in the library of the document that was read
                last; None: none are kept.
        """
        reply, reporter = self._streamed(books), self.reporter
        unread = [book.document.name for book in books if not book.read]
        which = unread[0] if len(books) == 1 else f"{len(unread)} of {len(books)} documents"
        reporter.warn(  # with --quiet, too: the command goes on for minutes
            f"esa: not read yet: {which}. This answer was found by words alone; reading now, "
            "Ctrl-C keeps it"
        )
        try:
            self.timing.lap()
            books_read = read()
            self.timing.ingested(books_read)
            later = self._reply(books_read, None)
        except BaseException as error:
            reporter.settle()
            if isinstance(error, KeyboardInterrupt):
                rest = _next_reading(stored())
                reporter.note(f"esa: the answer above was found by words alone{rest}")
            self._report(reply, books)
            raise
        if _same(reply, later):
            reporter.note("esa: reading changed nothing: the same answer, the same first passage")
        else:
            reporter.warn("esa: the answer after reading:")
            print(wrapped_text(clean(later.text), sys.stdout), flush=True)
            show_under(later, self.request.options.passages, reporter)
        reporter.note(summary(self._as_dict(later, books_read)))
        self._report(later, books_read)

    def _streamed(self, books: Sequence[Book]) -> Reply:
        """The reply, shown as it comes, with its passages."""
        with AnswerStream(sys.stdout, self.reporter) as stream:
            reply = self._reply(books, stream)
        print(flush=True)
        show_under(reply, self.request.options.passages, self.reporter)
        return reply

    def _reply(self, books: Sequence[Book], on_text: Callable[[str], None] | None) -> Reply:
        self.reporter.waiting("answering")
        reply = self.esa.ask(
            self.request.question,
            books,
            evidence=max(self.request.options.passages, 0 if self.request.options.as_json else 1),
            on_text=on_text,
            **self.request.generation.arguments(),
        )
        self.timing.answer_s = self.timing.lap()
        self.reporter.settle()
        return reply

    def _as_dict(self, reply: Reply, books: Sequence[Book]) -> dict[str, Any]:
        found = as_dict(self.esa, books, reply, self.timing, self.left_out)
        return {**found, "searched": self.searched} if self.searched else found

    def _report(self, reply: Reply, books: Sequence[Book]) -> None:
        """Last: where the report cannot be written, the answer is there."""
        path = self.request.options.report
        if path is not None:
            write(path, self.esa.report(reply, self.request.question, books))
            if not self.request.options.as_json:
                self.reporter.note(f"esa: wrote {path}")


def _next_reading(stored: int | None) -> str:
    """Where the next reading of a document begins of which so many tokens are stored."""
    if stored is None:
        return ""
    if stored == 0:
        return "; nothing of the document is stored yet, so the next reading begins anew"
    return f"; the next reading goes on after the first {stored:,} tokens, which are stored"


def _same(one: Reply, other: Reply) -> bool:
    """Whether two replies have the same text and the same first passage."""
    places = [[(e.document, e.start, e.end) for e in reply.evidence[:1]] for reply in (one, other)]
    return one.text.strip() == other.text.strip() and places[0] == places[1]
