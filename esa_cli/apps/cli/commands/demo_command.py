"""`esa demo`: the tool's main job, on screen, with a document that the package generates.

The chronicle is over four times as long as the default model's window. The questions are in other
words than its own, and one of them it does not answer.
"""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.output.answer_output import NOT_FOUND, PIPE_WIDTH, AnswerStream, passage_line
from esa_cli.apps.cli.output.terminal import Reporter, make_console
from esa_cli.system.machine import size_text, time_text

if TYPE_CHECKING:
    from esa_cli.evaluation.tasks.chronicle_task import Reworded
    from esa_cli.qa.api import Esa
    from esa_cli.qa.finding.books import Book

MOST = 9
NAME = "chronicle.md"
SOURCE = "esa demo"


@options.command
def demo(
    count: Annotated[
        int, option("--questions -n N", "Ask so many of the questions.", min=1, max=MOST)
    ] = MOST,
    keep: Annotated[
        bool, option("--keep", "Keep the chronicle in the library, to ask it more.")
    ] = False,
    *,
    model: ModelOptions,
    quiet: options.Quiet = False,
) -> None:
    """Ask a generated document questions, and check the answers.

    It leaves no files. Works in any folder. The first use fetches the model.
    """
    from esa_cli.apps.cli.open_esa import opened
    from esa_cli.documents.document import Document
    from esa_cli.evaluation.tasks.chronicle_task import build
    from esa_cli.models import parse_reference
    from esa_cli.qa.opening import answerable

    started, screen, text = time.perf_counter(), make_console(sys.stdout), build()
    document = Document(NAME, text, SOURCE, "utf-8", len(text.encode()))
    with Reporter(quiet) as reporter:
        chosen, size = model.load_preset(), size_text(document.bytes)
        about = f"a chronicle of {len(text.split()):,} words ({size}) that esa makes up"
        show(screen, f"esa demo: questions about {about}, with facts strewn into it\n", "bold")
        name = parse_reference(chosen.model).name
        line = f"1. The model, {name}, is loaded; the first use fetches it, then it is kept."
        show(screen, line)
        with opened(answerable(chosen, reporter), model, reporter, keep=keep) as esa:
            loaded = time.perf_counter()
            show(screen, "2. The model reads the chronicle once, for all questions.")
            book = esa.ingest(document)
            window = esa.preset.context
            times = f", {book.tokens / window:.1f} times the model's window of {window:,}"
            how = f"read in {time_text(book.read_s)}" if book.read_s else "read before"
            rest = f"{times}; {how}" if book.read else "; nothing is read in advance"
            show(screen, f"   {book.tokens:,} tokens{rest}.")
            show(
                screen,
                "3. The questions are in other words than the text's. Below each answer: whether "
                "it is right, and the passage it rests on, with how much that counts.\n",
            )
            since = time.perf_counter()
            right = sum(ask(esa, book, one, screen, reporter) for one in questions(count))
            now = time.perf_counter()
            spent = {"loading": loaded - started, "reading": book.read_s, "answering": now - since}
            shares = ", ".join(f"{what} {time_text(seconds)}" for what, seconds in spent.items())
            total = f"{right} of {count} right, in {time_text(now - started)} ({shares})."
            show(screen, total, "bold")
            where = f"in the library; esa library rm {NAME} removes it" if keep else "not kept"
            show(screen, f'The chronicle is {where}. Your own documents: esa ask FILE "QUESTION"')


def questions(count: int) -> list[Reworded]:
    """So many questions; of several, the last is the one without an answer."""
    from esa_cli.evaluation.tasks.chronicle_task import reworded

    *answered, unanswered = reworded()
    return [*answered[: max(1, count - 1)], *[unanswered][: count - 1]]


def ask(esa: Esa, book: Book, question: Reworded, screen: Any, reporter: Reporter) -> bool:
    """Asks and shows one question; whether the answer was right."""
    from esa_cli.evaluation.tasks.chronicle_task import is_answered

    show(screen, question.question, "bold")
    sys.stdout.write("  ")
    reporter.waiting("answering")
    stream = AnswerStream(sys.stdout, reporter)
    reply = esa.ask(question.question, [book], evidence=1, on_text=stream)
    reporter.settle()
    print(flush=True)
    if reply.doubtful:
        show(screen, f"  {NOT_FOUND}")
    answers = question.answers
    right = is_answered(reply.text, answers) if answers else not reply.found
    fact = f"the text says {answers[0]}" if answers else "the text does not say"
    verdict = ("right" if answers else f"right: {fact}") if right else f"wrong: {fact}"
    show(screen, f"  {verdict} ({time_text(reply.total_s)})", "dim")
    width = shutil.get_terminal_size().columns if screen.is_terminal else PIPE_WIDTH
    for passage in reply.evidence:
        line = passage_line(passage, max(width, 40), reply.quotation, reply.found)
        show(screen, line, "cyan")
    show(screen, "")
    return right


def show(screen: Any, text: str, style: str | None = None) -> None:
    screen.print(text, style=style, markup=False, soft_wrap=not screen.is_terminal)
