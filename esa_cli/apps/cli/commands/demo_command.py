"""The command `esa demo`, which asks about a generated chronicle and checks the answers."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.output.answer_output import NOT_FOUND
from esa_cli.apps.cli.output.passage_output import print_passages
from esa_cli.apps.cli.output.terminal import Reporter, make_rich_console
from esa_cli.documents.document import Document
from esa_cli.evaluation.tasks import chronicle_task
from esa_cli.qa.answering.passage_choice import choose_passages
from esa_cli.system.machine import format_duration, format_size

if TYPE_CHECKING:
    from esa_cli.qa.api import Esa
    from esa_cli.qa.finding.passage_finder import Book


@options.make_typer_command
def demo(
    count: Annotated[
        int, option("--questions -n N", "Number of questions to ask.", min=1, max=9)
    ] = 9,
    *,
    model: options.ModelOptions,
    quiet: options.Quiet = False,
) -> None:
    """Ask questions about a generated document, and check the answers.

    `esa demo` works in any folder and leaves no files, but its first run fetches the model."""
    from esa_cli.apps.cli.model_and_documents import open_model
    from esa_cli.qa.opening import choose_answer_source

    started, text = time.perf_counter(), chronicle_task.build_chronicle()
    document = Document("chronicle.md", text, "esa demo", "utf-8", len(text.encode()))
    with Reporter(quiet) as reporter:
        chosen, size = model.load_preset(), format_size(document.bytes)
        about = f"a chronicle of {len(text.split()):,} words ({size}) that esa makes up"
        title = f"esa demo: questions about {about}, in other words than the chronicle's"
        _print_in_style(title, "bold")
        with open_model(choose_answer_source(chosen, reporter), model, reporter, keep=False) as esa:
            book, window = esa.ingest(document), esa.preset.context
            times = f"{book.tokens / window:.1f} times the model's window of {window:,}"
            how = f", read once in {format_duration(book.read_s)}" if book.read else ""
            _print_in_style(f"{esa.name}: {book.tokens:,} tokens, {times}{how}\n")
            *answered, unanswered = chronicle_task.get_demo_questions()
            questions = [*answered[: max(1, count - 1)], *[unanswered][: count - 1]]
            right = sum(_ask_and_check_answer(esa, book, *one, reporter) for one in questions)
    seconds = time.perf_counter() - started
    _print_in_style(f"{right} of {count} right, in {format_duration(seconds)}.", "bold")
    _print_in_style('The chronicle is not stored. Ask your own documents: esa ask FILE "QUESTION"')


def _ask_and_check_answer(
    esa: Esa, book: Book, question: str, answers: Sequence[str], reporter: Reporter
) -> bool:
    _print_in_style(question, "bold")
    reporter.show_spinner("answering")
    reply = esa.ask(question, [book], evidence=1)
    reporter.clear_spinner()
    _print_in_style(f"  {reply.text_with_certainty}")
    if reply.doubtful:
        _print_in_style(f"  {NOT_FOUND}")
    right = chronicle_task.contains_answer(reply.text, answers) if answers else not reply.found
    fact = f"the text says {answers[0]}" if answers else "the text does not say"
    verdict = "right" if right and answers else f"{'right' if right else 'wrong'}: {fact}"
    _print_in_style(f"  {verdict} ({format_duration(reply.total_s)})", "dim")
    print_passages(choose_passages(reply, 1), reply.quotations, make_rich_console(sys.stdout))
    _print_in_style("")
    return right


def _print_in_style(text: str, style: str | None = None) -> None:
    console = make_rich_console(sys.stdout)
    console.print(text, style=style, markup=False, soft_wrap=not console.is_terminal)
