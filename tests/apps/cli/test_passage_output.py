"""Passages on the screen: wrapped, with the quotation marked and the lines of code kept."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from textwrap import dedent, indent
from urllib.parse import unquote, urlsplit

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from esa_cli.apps.cli.output import passage_output, terminal
from esa_cli.apps.cli.output.answer_output import AnswerPrinter, print_answer_and_passages
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.documents.document import Document
from esa_cli.qa.answering.reply import NOT_TOLD, CheckedSentence, Quotation, Reply
from esa_cli.qa.finding.passage import Passage


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


STORY = f"It rained. {'The keeper had a heron and ' * 6}called it Bottle. {'He slept. ' * 99}"


def make_passage(text: str, source: str = "notes.md", start: int = 0, **more: object) -> Passage:
    name = source.rpartition("/")[2]
    return Passage(name, source, None, 13, None, start, start + len(text), text, **more)  # type: ignore[arg-type]


def print_lines(
    passage: Passage, width: int, monkeypatch: pytest.MonkeyPatch, *quoted: str, **more: bool
) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    stream, is_terminal = io.StringIO(), width < passage_output.PIPE_WIDTH
    console = Console(
        file=stream, force_terminal=is_terminal, width=width, color_system=None, highlight=False
    )
    starts = [passage.start + passage.text.index(words) for words in filter(None, quoted)]
    spans = zip(starts, quoted, strict=True)
    quotations = [Quotation(passage.document, at, at + len(words)) for at, words in spans]
    passage_output.print_passages([(1, passage)], quotations, console, **more)
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_terminal_gets_lines_that_fit_and_end_after_words(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    blank, place, *lines = print_lines(make_passage(STORY), width, monkeypatch, "Bottle")
    assert (blank, place) == ("", "  notes.md:13")
    shown = " ".join(line.strip() for line in lines)
    assert "called it Bottle. He slept." in shown
    assert len(lines) == passage_output.MAX_LINES
    assert shown.endswith(" …")
    assert all(cell_len(line) <= width and line.startswith("    ") for line in lines)
    assert set(shown.strip("… ").split()) <= set(STORY.split()), "no word is cut"
    whole = print_lines(make_passage(STORY), width, monkeypatch, "Bottle", is_whole=True)
    assert " ".join(" ".join(whole[2:]).split()) == STORY.strip()


def test_the_place_is_a_link_where_a_terminal_can_show_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout", Terminal())
    path = tmp_path / "a \x1b[31m ü.txt"
    console = terminal.make_rich_console(sys.stdout)
    for source in (str(path), "gone.txt"):
        path.write_text("x", "utf-8")
        passage_output.print_passages([(1, make_passage("It rained.", source))], (), console)
    links = re.findall("\x1b]8;[^;]*;([^\x1b]+)\x1b", sys.stdout.getvalue())
    assert [unquote(urlsplit(link).path) for link in links] == [str(path)]
    plain = terminal.make_rich_console(io.StringIO())
    passage_output.print_passages([(1, make_passage("It rained.", str(path)))], (), plain)
    assert "\x1b" not in plain.file.getvalue()


def test_a_quotation_far_from_the_beginning_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    story = STORY.replace("He slept. He slept. He slept.", "He woke.", 20)
    lines = print_lines(make_passage(f"{STORY}{story}He left."), 60, monkeypatch, "left")
    assert lines[2].startswith("    … ")
    assert lines[-1].endswith("left.")
    assert len(lines) == 2 + passage_output.MAX_LINES


@pytest.mark.parametrize("count", [1, 5, 7, 8, 9, 20])
@pytest.mark.parametrize("before", [0, 1, 30])
def test_no_line_with_quoted_words_is_cut(
    count: int, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many lines as the quotation has, and no more unless there is room."""
    code = [f"line_{n} = {n}" for n in range(before + count + 30)]
    quoted = code[before : before + count]
    passage = make_passage("\n".join(code), "src/bell.py")
    lines = [
        line.strip(" …") for line in print_lines(passage, 60, monkeypatch, "\n".join(quoted))[2:]
    ]
    at = lines.index(quoted[0])
    assert lines[at : at + count] == quoted
    assert len(lines) == max(count, passage_output.MAX_LINES)
    assert at == min(before, 2, max(0, passage_output.MAX_LINES - count))


def test_a_pipe_gets_the_whole_passage_and_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = print_lines(make_passage(STORY), 160, monkeypatch, "Bottle", has_numbers=True)
    assert lines[1] == "  [1] notes.md:13"
    words = " ".join(" ".join(lines[2:]).split())
    assert words == STORY.strip().replace("Bottle", "»Bottle«")
    assert max(map(len, lines)) <= passage_output.PIPE_WIDTH


def test_lines_of_code_and_rows_of_tables_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "def ring(bell):\n    if bell:\n\n\treturn 'loud'"
    lines = print_lines(make_passage(code, "src/bell.py"), 80, monkeypatch)
    assert lines[1:] == [
        "  src/bell.py:13", "    def ring(bell):", "        if bell:", "        return 'loud'",
    ]  # fmt: skip
    log = "09:00 INFO in\n09:01 WARN memory is low\n09:02 INFO out"
    lines = print_lines(make_passage(log, "a.log"), 80, monkeypatch)
    assert lines[2:] == [f"    {line}" for line in log.splitlines()]
    rows = "Name: Al; Amount: 3\nName: Bo; Amount: 4"
    lines = print_lines(make_passage(rows, "sales.csv"), 80, monkeypatch)
    assert lines[1:] == ["  sales.csv, row 13", *(f"    {row}" for row in rows.splitlines())]


def test_code_is_shown_without_the_indentation_of_all_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = "class A:\n\tdef f(self):\n\t\tif x:\n\t\t\treturn 1\n\t\treturn 2\n\tdef g(self):\n"
    for first, last in combinations(range(7), 2):
        lines = whole.splitlines()[first:last]
        start = sum(len(line) + 1 for line in whole.splitlines()[:first])
        start += len(lines[0]) - len(lines[0].lstrip())
        document = Document("a.py", whole, "a.py", "utf-8", len(whole))
        passage = Passage.cut_from(document, start, start + len("\n".join(lines).lstrip()))
        shown = print_lines(passage, 80, monkeypatch)[2:]
        assert shown == indent(dedent("\n".join(lines)), "    ").expandtabs(4).splitlines()


@pytest.mark.parametrize(
    "text",
    [
        "a\nb\n```\n[input_shaper]\nx: 1\n```\nc\nd",
        "FACTOR=.005\nFACTOR=.006\n```\n\na\nb",
        "a\nb\n~~~ sh\ncd x\nls -l",
        "```\nx\n```\n\na\nb\n```\ny = 1\nz\n```",
    ],
)
def test_code_in_markdown_keeps_its_lines(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of one letter are prose, which is joined."""
    wide = re.sub("(?m)^[abcd]$", "A line of prose that only the width of the page has ended", text)
    lines = [line.strip() for line in print_lines(make_passage(wide), 160, monkeypatch)[2:]]
    kept = [line for line in wide.splitlines() if line and not line.startswith("A line")]
    assert [line for line in lines if not line.startswith("A line")] == list(filter(None, kept))
    joined = [line for line in lines if line.startswith("A line")]
    assert [line.count("A line") for line in joined] == [2] * (wide.count("A line") // 2)


def test_only_lines_that_the_width_ended_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    poem = (
        "he saw\nthe great ship come round the point under full sail,\nwith the wind behind her "
        "and the sun on the canvas.\n- rope\n- tar\nShort line.\nAnother paragraph, which is new."
    )
    lines = print_lines(make_passage(poem, "a.txt", start=90), 160, monkeypatch)
    assert [line.strip() for line in lines[2:]] == [
        "he saw the great ship come round the point under full sail, with the wind behind her and "
        "the sun on the canvas.",
        "- rope", "- tar", "Short line.", "Another paragraph, which is new.",
    ]  # fmt: skip


def test_the_title_of_a_text_is_kept_and_the_head_of_a_mail_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prose = "Ruth says that the boats must be painted before the regatta, or\nnobody comes."
    fields = ["From: Jane Summers <jane@x.org>", "To: Bob <bob@x.org>", "Subject: The boats"]
    for head in (["Monday meeting, 4 March 2024"], fields):
        text = "\n".join([*head, prose])
        lines = print_lines(make_passage(text, "a.eml"), 160, monkeypatch)
        assert [line.strip() for line in lines[2:]] == ["; ".join(head), prose.replace("\n", " ")]


def test_lines_of_a_quoted_mail_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    own = "A line of a reply that only the width of the page has ended, and\nanother line like it."
    quoted = (
        "> The college would give us a laser of forty watts, would\n> insurance pay if it burns?"
    )
    for text in (f"{own}\n{quoted}\n{own}", f"{quoted}\n{own}\n{quoted}"):
        lines = [one.strip() for one in print_lines(make_passage(text, "re.eml"), 160, monkeypatch)]
        shown = [*filter(lambda one: one.startswith(">"), lines)]
        assert shown == quoted.split("\n") * text.count(quoted)
        assert lines.count(own.replace("\n", " ")) == text.count(own)


def test_wide_letters_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = print_lines(make_passage("灯塔的看守人有一只苍鹭。" * 20), 60, monkeypatch)
    assert max(map(cell_len, lines)) <= 60
    assert len(lines) == 2 + passage_output.MAX_LINES


def show(
    reply: Reply, monkeypatch: pytest.MonkeyPatch, *warnings: str, verbose: bool = False
) -> list[str]:
    """The lines of a terminal with an answer, before which these warnings came."""
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "80")
    with Reporter(verbose=verbose) as reporter:
        reporter.hold_warnings()
        reporter.show_note("esa: a note")
        for warning in warnings:
            reporter.warn(warning)
        print_answer_and_passages(reply, 3, reporter)
    return screen.getvalue().splitlines()


def test_an_uncertain_answer_comes_after_the_passages(monkeypatch: pytest.MonkeyPatch) -> None:
    passage, quotation = make_passage(STORY, weight=1.0), Quotation("notes.md", 0, 2)
    reply = Reply("It", (passage,), certainty="perhaps", quotations=(quotation,))
    lines = show(reply, monkeypatch)
    assert lines[0].startswith("Not certain")
    assert lines[-1] == "perhaps: It"
    assert show(Reply("It", (passage,), certainty="answer"), monkeypatch)[0] == "It"


def test_one_line_of_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    reply = Reply(
        NOT_TOLD, (make_passage(STORY),), False, certainty="nothing", missing_words=("Victoria",)
    )
    found = [
        "esa: old: 2 files to read; left out: c.png",
        "esa: left out: a.pdf",
        "esa: left out: b",
    ]
    lines = show(reply, monkeypatch, *found)
    assert lines[0] == NOT_TOLD
    notes = " ".join(lines[1 : lines.index("")])
    assert 'never mention "Victoria". left out: a.pdf. (2 more' in notes
    assert not any(f"left out: {file}" in notes or "a note" in notes for file in "bc")
    assert show(Reply("It", certainty="answer"), monkeypatch, found[1]) == [
        "It",
        "left out: a.pdf.",
    ]
    named = replace(reply, missing_words=(), names=("Ruth Ambler", "Ann", "Bo"), evidence=(
        make_passage("Ruth\nAmbler keeps the log of the valves. Anna and Bo mend the pump."),
        make_passage("Ann is in no passage that is shown."),
    ))  # fmt: skip
    said = 'The passages name "Ruth Ambler" and "Bo"; none answers.'
    assert said in " ".join(show(named, monkeypatch)), "the other passage has no weight"
    assert '"Ruth Ambler" and "Ann" and "Bo"' in named.describe_missing_words()
    german = Reply("Es", certainty="answer", foreign_languages=("German",))
    assert "There are passages in German; the finder" in show(german, monkeypatch)[1]
    lines = show(reply, monkeypatch, "esa: left out: a.png", verbose=True)
    assert lines[:3] == ["esa: a note", "esa: left out: a.png", NOT_TOLD]


def test_warnings_are_shown_if_there_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "dumb")
    with Reporter() as reporter:
        reporter.hold_warnings()
        reporter.warn("esa: left out: a.png")
        assert not screen.getvalue()
    assert screen.getvalue().splitlines() == ["esa: left out: a.png"]


def test_unsupported_sentences_are_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "It opens at nine. It was built\nin 1803 by Ann Brown, who was a builder from far away."
    checked = (
        CheckedSentence(0, 17, True, 1),
        CheckedSentence(18, len(text), False, None, ("1803",)),
    )
    lines = show(Reply(text, sentences=checked), monkeypatch)
    assert all(len(line) <= 80 for line in lines)
    mark = " ".join(" ".join(lines[2:]).split())
    assert mark == f"? not in the passages: 1803 ({' '.join(text[18:].split())})"


def test_an_answer_is_wrapped_at_words() -> None:
    text = "one two-three " * 20 + "\n\n" + "x" * 90 + " end"
    for columns in (20, 61):
        wrapped = passage_output.wrap_text(Text(text), columns, Console(width=columns))
        lines = [line.plain for line in wrapped]
        assert "".join(lines).replace(" ", "") == text.replace(" ", "").replace("\n", "")
        assert all(len(line) <= columns for line in lines)
        assert "" in lines, "paragraphs stay apart"


BIDI = "\u202eevil\u202c \u2066x\u2069 \u200f\u061c"


def test_words_of_documents_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither emoji nor control characters, whether strings, texts or tables are printed."""
    from rich.table import Table

    said = ":key: \x1b[31mred\x9b \x07 " + BIDI
    table = Table(said, box=None)
    table.add_row(said)
    console = terminal.make_rich_console(sys.stdout)
    console.print(said, markup=False)
    console.print(table)
    terminal.print_table(("",), [(said,)])
    terminal.Reporter().warn(said)
    out, err = capsys.readouterr()
    for shown in (out, err):
        assert ":key: [31mred" in shown
        assert not re.search(
            r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e-\u200f\u202a-\u2069]", shown
        )
    terminal.print_json({"said": said})
    told = capsys.readouterr().out
    assert json.loads(told) == {"said": said}
    assert "\\u202e" in told
    assert not set(BIDI) & set(told) - {*"evil x"}


def test_the_time_left_is_counted_from_the_last_call_with_nothing_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, shown = [0.0], list[str]()
    monkeypatch.setattr(terminal.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(Reporter, "show_spinner", lambda reporter, text: shown.append(text))
    show = Reporter(quiet=True).start_progress("reading", "passages")
    for at, done in ((100.0, 0), (102.0, 4), (110.0, 16)):
        clock[0] = at
        show(done, 20)
    clock[0] = 150.0
    show(1, 3)
    assert shown == [
        "reading: 0 of 20 passages",
        "reading: 4 of 20 passages, 2 passages/s, 8.0 s left",
        "reading: 16 of 20 passages, 2 passages/s, 2.5 s left",
        "reading: 1 of 3 passages, 0.02 passages/s, 1 min 40 s left",
    ]


def test_an_answer_is_shown_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    answer = AnswerPrinter(terminal, Reporter())
    for piece, shown in ((" ", ""), (" Ahab\x1b[2J", "Ahab[2J"), (" com", "Ahab[2J com")):
        answer(piece)
        assert terminal.getvalue() == shown
