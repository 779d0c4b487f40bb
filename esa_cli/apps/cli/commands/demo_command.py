"""`esa demo`: the tool's main job, on screen, with a document that the package generates.

The chronicle is over four times as long as the default model's window. The questions are in other
words than its own, and one of them it does not answer.
"""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING, Annotated

from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.options import ModelOptions

if TYPE_CHECKING:
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.documents.document import Document
    from esa_cli.evaluation.tasks.chronicle_task import Reworded
    from esa_cli.qa.answering.reply import Reply
    from esa_cli.qa.api import Esa
    from esa_cli.qa.books import Book
    from esa_cli.qa.presets.preset import Preset

MOST = 9
Count = Annotated[int, option("--questions -n N", "Ask so many of the questions.", min=1, max=MOST)]
Kept = Annotated[bool, option("--keep", "Keep the chronicle in the library, to ask it more.")]


@options.command
def demo(
    count: Count = MOST, keep: Kept = False, *, model: ModelOptions, quiet: options.Quiet = False
) -> None:
    """Ask a generated document questions, and check the answers.

    Nothing is left behind. Works in any folder. The first use fetches the model.
    """
    from esa_cli.apps.cli.open_esa import opened
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.qa.opening import answerable

    started, reporter = time.perf_counter(), Reporter(quiet)
    run = DemoRun(count, keep, reporter, started)
    try:
        chosen = model.load_preset()
        run.introduce(chosen)
        chosen = answerable(chosen, reporter)
        with opened(chosen, model, reporter, keep=keep) as esa:
            run.ask_all(esa, run.read(esa))
    except KeyboardInterrupt:
        reporter.settle()
        run.stopped()
        raise
    finally:
        reporter.settle()


NAME = "chronicle.md"
SOURCE = "esa demo"


class DemoRun:
    """One run of the demo; its steps, questions and answers go to standard output.

    Args:
        count: questions; of several, the last is the one without an answer. keep: the chronicle
            goes into the library. started: `time.perf_counter()` at the command's start.
    """

    def __init__(self, count: int, keep: bool, reporter: Reporter, started: float) -> None:
        from esa_cli.apps.cli.output.terminal import make_console
        from esa_cli.evaluation.tasks.chronicle_task import reworded

        self.keep, self.reporter, self.started = keep, reporter, started
        self.screen = make_console(sys.stdout)
        *answered, unanswered = reworded()
        self.questions = [*answered[: max(1, count - 1)], *[unanswered][: count - 1]]
        self.document = _chronicle()
        self.loaded_s = self.read_s = 0.0

    def introduce(self, chosen: Preset) -> None:
        """Says what will be read, and by which model."""
        from esa_cli.models import parse_reference
        from esa_cli.system.machine import size_text

        words, size = len(self.document.text.split()), size_text(self.document.bytes)
        self._say(
            f"esa demo: questions about a chronicle of {words:,} words ({size}) that esa makes up, "
            "with facts strewn into it\n",
            "bold",
        )
        name = parse_reference(chosen.model).name
        self._say(f"1. The model, {name}, is loaded; the first use fetches it, then it is kept.")

    def read(self, esa: Esa) -> Book:
        """Has the model read the chronicle. Raises: as `Esa.ingest`."""
        from esa_cli.system.machine import time_text

        self.loaded_s = time.perf_counter() - self.started
        self._say("2. The model reads the chronicle once, for all questions.")
        book = esa.ingest(self.document)
        self.read_s = book.read_s
        window = esa.preset.context
        times = f", {book.tokens / window:.1f} times the model's window of {window:,}"
        how = f"read in {time_text(book.read_s)}" if book.read_s else "read before"
        rest = f"{times}; {how}" if book.read else "; nothing is read in advance"
        self._say(f"   {book.tokens:,} tokens{rest}.")
        return book

    def ask_all(self, esa: Esa, book: Book) -> None:
        """Asks the questions, checks the answers, and says how many were right and how long all
        took."""
        from esa_cli.system.machine import time_text

        count, right = len(self.questions), 0
        asked = f"{count} questions are" if count > 1 else "One question is"
        self._say(
            f"3. {asked} asked in other words than the text's. Below each answer: whether it is "
            "right, and the passage it rests on, with how much that counts.\n"
        )
        since = time.perf_counter()
        for one in self.questions:
            right += self._ask(esa, book, one)
        now = time.perf_counter()
        spent = {"loading": self.loaded_s, "reading": self.read_s, "answering": now - since}
        shares = ", ".join(f"{what} {time_text(seconds)}" for what, seconds in spent.items())
        total = f"{right} of {count} right, in {time_text(now - self.started)}"
        self._say(f"{total} ({shares}).", "bold")
        self._say(_farewell(self.keep))

    def stopped(self) -> None:
        """Says what a Ctrl-C leaves behind."""
        kept = "what was read of it is in the library" if self.keep else "nothing of it is kept"
        self.reporter.warn(f"esa: the demo ends here; {kept}. A model that was fetched stays")

    def _ask(self, esa: Esa, book: Book, one: Reworded) -> bool:
        from esa_cli.apps.cli.output.answer_output import NOT_FOUND, AnswerStream
        from esa_cli.evaluation.tasks.chronicle_task import is_answered
        from esa_cli.system.machine import time_text

        self._say(one.question, "bold")
        sys.stdout.write("  ")
        self.reporter.waiting("answering")
        answer = AnswerStream(sys.stdout, self.reporter, indent="  ")
        reply = esa.ask(one.question, [book], evidence=1, on_text=answer)
        self.reporter.settle()
        answer.end()
        print(flush=True)
        if reply.doubtful:
            self._say(f"  {NOT_FOUND}")
        right = is_answered(reply.text, one.answers) if one.answers else not reply.found
        self._say(f"  {_verdict(one, right)} ({time_text(reply.total_s)})", "dim")
        self._show_passage(reply)
        return right

    def _show_passage(self, reply: Reply) -> None:
        from esa_cli.apps.cli.output.answer_output import PIPE_WIDTH, passage_line

        terminal = self.screen.is_terminal
        width = shutil.get_terminal_size().columns if terminal else PIPE_WIDTH
        for passage in reply.evidence:
            self._say(passage_line(passage, max(width, 40), reply.quotation, reply.found), "cyan")
        self._say("")

    def _say(self, text: str, style: str | None = None) -> None:
        self.screen.print(text, style=style, markup=False, soft_wrap=not self.screen.is_terminal)


def _chronicle() -> Document:
    from esa_cli.documents.document import Document
    from esa_cli.evaluation.tasks.chronicle_task import build

    text = build()
    return Document(NAME, text, SOURCE, "utf-8", len(text.encode()))


def _verdict(one: Reworded, right: bool) -> str:
    if right:
        return "right" if one.answers else "right: the text does not say"
    told = one.answers[0] if one.answers else "nothing of it"
    return f"wrong: the text says {told}"


def _farewell(keep: bool) -> str:
    own = 'Your own documents: esa ask FILE "QUESTION"'
    if keep:
        more = f'esa ask --library "QUESTION" asks it more, esa library rm {NAME} removes it'
        return f"The chronicle is in the library: {more}.\n{own}"
    return f"Nothing of it is kept in the library; with --keep the chronicle is.\n{own}"
