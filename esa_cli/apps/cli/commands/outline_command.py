"""The command `esa outline`, which lists the chapters of a document, or quotes from one of them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import typer

from esa_cli.apps.cli.inputs import read_documents
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.command_help import argument
from esa_cli.apps.cli.output import terminal
from esa_cli.errors import NOT_FOUND, UsageError
from esa_cli.storage.library import Library


@options.make_typer_command
def outline(
    arguments: Annotated[
        list[str], argument("DOC [CHAPTER]", "A document; a chapter's number or title.")
    ],
    *,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """List the chapters of a document, or quote the central sentences of one.

    esa outline book.txt 3"""
    from esa_cli.documents.outline import find_sections, fold, parse_number

    name, *chapters = arguments
    with terminal.Reporter(quiet) as reporter, ExitStack() as stack:
        documents = read_documents([name], reporter).documents
        if len(documents) > 1:
            hint = "name one document: esa outline book.txt"
            raise UsageError(f"{name} is a folder or pattern with several documents", hint)
        if len(chapters) > 1:
            wrong = "esa outline needs one document and at most one chapter"
            raise UsageError(wrong, "quote a title of several words")
        document, sections = documents[0], find_sections(documents[0])
        if chapters:
            from esa_cli.apps.cli.model_and_documents import LazyPassageFinder, open_model
            from esa_cli.qa import sections as section_answers
            from esa_cli.qa.presets.preset import make_preset_for_finding

            wanted = f"chapter {chapters[0]}" if parse_number(chapters[0]) else chapters[0]
            found = section_answers.find_named_sections(wanted, fold(wanted), sections)
            if not found:
                hint = f"`esa outline {name}` lists the chapters"
                raise UsageError(f"{document.name} has no chapter {chapters[0]!r}", hint)
            model, library = options.ModelOptions(), Library()
            chosen = make_preset_for_finding(model.load_preset(), False)
            finder = LazyPassageFinder(
                chosen, model, library, reporter,
                lambda: stack.enter_context(
                    open_model(chosen, model, reporter, keep=False, library=library)
                ),
            )  # fmt: skip
            book = finder.open_document(document)
            asked = section_answers.AskedSection(0, found[0], False, len(found) - 1)
            reply = section_answers.quote_section(finder.search, book, asked)
            terminal.print_json(reply.to_json()) if as_json else print(reply.text)
            return
        places = [document.place(one.start) for one in sections]
        both = list(zip(sections, places, strict=True))
        if as_json:
            rows = [one._asdict() | {"page": at.page, "line": at.line} for one, at in both]
            terminal.print_json({"document": document.name, "sections": rows})
        elif sections:
            least = min(one.level for one in sections)
            terminal.print_table(("", "chapter", "words"), [
                (
                    f"line {at.line}" if at.page is None else f"page {at.page}",
                    "  " * (one.level - least) + terminal.make_printable_line(one.heading),
                    f"{len(document.text[one.start : one.end].split()):,}",
                )
                for one, at in both if not one.is_contents
            ])  # fmt: skip
    if not sections:
        reporter.warn(f"esa: {document.name} has no headings that esa knows")
        raise typer.Exit(NOT_FOUND)
