"""The command `esa batch`, which answers the questions of a file with one JSON object per line:

    {"question": "Who is Ahab?", "documents": ["book.txt"], "id": "q1"}

The documents are files, folders and patterns, relative to the folder of the questions file; without
any, those of the library."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

from esa_cli.apps.cli.inputs import SAVE_INPUT
from esa_cli.apps.cli.options import options, output_paths
from esa_cli.apps.cli.options.command_help import argument, option
from esa_cli.apps.cli.output import terminal
from esa_cli.apps.open_document_cache import OpenDocumentCache
from esa_cli.documents.document import gather_documents
from esa_cli.documents.sources import InputFiles, LeftOutFiles, find_files
from esa_cli.errors import PARTIAL, DocumentError, EsaError, UsageError
from esa_cli.qa.answering.reply import describe_unextracted_parts
from esa_cli.qa.api import Esa
from esa_cli.storage.library import Library
from esa_cli.system.jsonl import AnswersFile
from esa_cli.system.machine import format_duration
from esa_cli.system.strict_parsing import load_json
from esa_cli.system.text import digest_text, has_lone_surrogate

_NO_DOCUMENTS = (
    'documents must be given as "documents" in the line, or on the command line, as the library '
    "has none"
)
EXAMPLE = 'write one JSON object a line: {"question": "...", "documents": ["book.txt"]}'


@options.make_typer_command
def batch(
    questions: Annotated[
        Path, argument("QUESTIONS.jsonl", 'Lines like {"question": "...", "documents": ["a.pdf"]}.')
    ],
    out: Annotated[
        Path, option("--out -o FILE", "Write answers to a JSON Lines file, or continue the file.")
    ],
    documents: Annotated[
        list[str] | None,
        argument("DOC...", "Documents for the questions that name none; by default the library's."),
    ] = None,
    limit: Annotated[
        int | None, option("--limit N", "Ask only the first N questions.", min=1)
    ] = None,
    retry_failed: Annotated[
        bool, option("--retry-failed", "Ask the questions again that got an error.")
    ] = False,
    top: Annotated[int, option("--top N", "Passages to store per answer.", min=0, max=50)] = 3,
    keep: options.Keep = None,
    method: options.Method = None,
    *,
    shards: options.QuestionShardOptions,
    model: options.AnswerModelOptions,
    generation_options: options.AnswerGenerationOptions,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Answer the questions of a file, in order.

    After a stop, the same `esa batch` command continues where it was. Exit code 7 means that some
    questions got an error instead of an answer."""
    from esa_cli.apps.cli.model_and_documents import open_model
    from esa_cli.qa.opening import choose_answer_source

    chosen = model.load_preset(method)
    asking = {**asdict(generation_options), "evidence": top}
    reader, shard = model.choose_reader(), shards.check_files_and_parse_shard(out)
    started = time.monotonic()
    with terminal.Reporter(quiet) as reporter:
        chosen = chosen if method else choose_answer_source(chosen, reporter)
        settings = chosen.model_dump(mode="json", exclude={"name", "description"})
        answer_settings = {**asking, "preset": settings}
        asked = _load_batch_questions(questions, out, documents or [], answer_settings, reporter)
        end = len(asked[:limit])
        if shard.count > 1:
            # In groups, so that shards share few documents.
            groups = group_questions_by_documents(enumerate(asked[:limit]))
            indices = [index for group in groups for index, _ in group]
            asked = [asked[index] for index in sorted(shard.select_contiguous_items(indices))]
            count, end = end, len(asked)
            reporter.show_note(f"esa: shard {shard}: {end} of {count} questions", dim=False)
        places = [(question.key, question.id) for question in asked]
        with AnswersFile(out, places, retry_failed=retry_failed) as answers:
            copy_answers_from_shard_files(answers, asked[:end], shards.join or ())
            before = sum(answers.has_row(index) for index in range(end))
            if before:
                kept = terminal.pluralize(before, "question")
                reporter.show_note(f"esa: kept from an earlier run: {kept}")
            if before < end:
                with open_model(chosen, model, reporter, keep=keep, reader=reader) as esa:
                    answer_batch_questions(esa, asked[:end], answers, asking, reporter)
        reporter.clear_spinner()
        seconds = time.monotonic() - started
        failed = sum(index < end for index in answers.failed_question_indices)
        if as_json:
            counts = {"questions": end, "answered": end - failed, "failed": failed, "kept": before}
            terminal.print_json({**counts, "seconds": round(seconds, 1), "out": str(out)})
        answered = f"{end - failed} of {end} questions answered"
        reporter.show_note(f"esa: {answered} in {format_duration(seconds)}, in {out}")
        if failed:
            failures = terminal.pluralize(failed, "question")
            reporter.warn(f"esa: {failures} got an error; --retry-failed asks again")
    if failed:
        raise typer.Exit(PARTIAL)


def _load_batch_questions(
    questions_file: Path, answers: Path, default_documents: Sequence[str],
    answer_settings: Mapping[str, Any], reporter: terminal.Reporter,
) -> list[BatchQuestion]:  # fmt: skip
    if "-" in default_documents:
        raise UsageError("a document must be a file, got standard input (-)", SAVE_INPUT)
    output_paths.check_output_file("--out", answers, [str(questions_file)], "the questions file")
    if answers.exists() and not answers.is_file():  # as its rows are read first
        raise UsageError(f"--out must be a regular file, got {answers}", "choose another --out")
    questions = read_questions_file(questions_file, default_documents, answer_settings)
    for question in questions:
        if question.fault:
            reporter.warn(f"esa: {questions_file}, line {question.line}: {question.fault}")
    sources = list(dict.fromkeys(question.files for question in questions))
    for left_out in dict.fromkeys(one for source in sources for one in source.left_out):
        reporter.warn(f"esa: {left_out.message}")
    for document in dict.fromkeys(one for source in sources for one in source.paths):
        if not os.path.exists(document):
            reporter.warn(f"esa: there is no document {document}")
    return questions


@dataclass(frozen=True)
class BatchQuestion:
    """A question of the questions file; `key` joins digests of question and settings, and of the
    documents, and `fault` says why the question cannot be asked, or is empty."""

    line: int
    id: Any
    question: str
    documents: tuple[str, ...]
    files: InputFiles
    key: str
    fault: str = ""


def read_questions_file(
    questions_file: Path, default_documents: Sequence[str], answer_settings: Mapping[str, Any]
) -> list[BatchQuestion]:
    """Returns the questions of a file, in order; an invalid line becomes a question with a fault.
    Raises DocumentError: the file has no valid question, or the documents cannot be found."""
    try:
        lines = questions_file.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        wrong = f"{questions_file} cannot be read: {error.strerror}"
        raise DocumentError(wrong, "check the path") from error
    default, digest_file = find_files(default_documents), cache(_compute_file_digest)
    list_library_digests = cache(_list_library_digests)

    @cache
    def find_files_of_documents(document_names: tuple[str, ...]) -> InputFiles:
        return find_files([str(questions_file.parent / name) for name in document_names])

    questions: list[BatchQuestion] = []
    for line, raw in enumerate(lines, 1):
        if not raw.strip():
            continue
        row, fault = _parse_batch_question(raw)
        text, names, id = row.get("question", ""), default.paths, row.get("id", len(questions) + 1)
        files = InputFiles() if fault else default
        asked: list[Any] = ["fault", raw.hex()]
        if not fault:
            asked = [text, row.get("documents") or default_documents, row.get("id")]
            asked.append(answer_settings)
            if row.get("documents") is not None:
                names = tuple(row["documents"])
                try:
                    files = find_files_of_documents(names)
                except DocumentError as error:
                    files = InputFiles()
                    fault = f"{error.message}; paths are relative to the folder of this file"
            elif not default.sources and not list_library_digests():
                fault = _NO_DOCUMENTS
        # The key of `AnswersFile` has the texts' digests: changed documents need new answers.
        digests = [] if fault or files.sources else list_library_digests()
        parts = [asked, [*map(digest_file, files.paths), *digests]]
        digests = [digest_text(json.dumps(part, sort_keys=True, default=str)) for part in parts]
        key = ".".join(digest[:16] for digest in digests)
        questions.append(BatchQuestion(line, id, text, names, files, key, fault))
    if all(question.fault for question in questions):
        why = f"line {questions[0].line}: {questions[0].fault}" if questions else "it is empty"
        raise DocumentError(f"no line of {questions_file} is a valid question; {why}", EXAMPLE)
    return questions


def _parse_batch_question(line: bytes) -> tuple[dict[str, Any], str]:
    """Returns the JSON object of a line; or of an invalid line its "id", if any, and its fault."""
    try:
        row = load_json(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # a line that is not UTF-8 is a ValueError, too
        return {}, f"the line must be JSON in UTF-8: {error}"
    if not isinstance(row, dict):
        return {}, "the line must be a JSON object"
    text, names = row.get("question"), row.get("documents")
    if isinstance(names, str):
        row["documents"] = names = [names]

    # With a misspelt key the question would be asked about other documents.
    misspelt = [name for name in row if name.lower() in ("doc", "docs", "document", "file")]
    if not isinstance(text, str) or not text.strip():
        fault = '"question" must be a text that is not empty'
        fault += f", got the keys {', '.join(row) or 'none'}" * ("question" not in row)
    elif names is None and misspelt:
        fault = f'documents must be given as "documents" in the line, got "{misspelt[0]}"'
    elif names is not None and not (
        isinstance(names, list)
        and names
        and all(isinstance(name, str) and name not in ("", "-") for name in names)
    ):
        fault = '"documents" must be a path or a list of paths'
    elif has_lone_surrogate(json.dumps(row, ensure_ascii=False)):
        fault = "the line must not have lone surrogates (U+D800-U+DFFF)"
    else:
        return row, ""
    return {"id": row["id"]} if "id" in row else {}, fault


def _list_library_digests() -> list[str]:
    """Returns the digests of the texts in the library, in order. Raises LibraryError."""
    from esa_cli.qa.ingestion.library_texts import load_library_texts

    return sorted(text.digest for text in load_library_texts(Library()).texts)


def _compute_file_digest(path: str) -> str:
    """Returns the SHA-256 digest of a file, or an empty string if the file cannot be read."""
    with suppress(OSError, ValueError):
        if os.path.isfile(path):
            with open(path, "rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
    return ""


def group_questions_by_documents(
    questions: Iterable[tuple[int, BatchQuestion]],
) -> list[list[tuple[int, BatchQuestion]]]:
    by_documents: dict[InputFiles, list[tuple[int, BatchQuestion]]] = {}
    for index, question in questions:
        by_documents.setdefault(question.files, []).append((index, question))
    return list(by_documents.values())


def copy_answers_from_shard_files(
    answers: AnswersFile, questions: Sequence[BatchQuestion], shard_files: Iterable[Path]
) -> None:
    """Copies rows that `answers` lacks from the answers files of other shards. A row with an answer
    replaces a row with an error. Raises UsageError: a file answers other questions."""
    keys = {question.key for question in questions}
    rows: dict[str, dict[str, Any]] = {}
    for path in shard_files:
        for row in answers.read_result_rows(path):
            if row.get("key") not in keys:
                wrong = f"{path} has answers to other questions, or with other settings"
                hint = "use the same questions file, documents and options for all shards"
                raise UsageError(wrong, hint)
            if "error" not in row or not (answers.retry_failed or row["key"] in rows):
                rows[row["key"]] = row
    for index, question in enumerate(questions):
        if question.key in rows and not answers.has_row(index):
            answers.add_row(index, {**rows[question.key], "id": question.id})


def answer_batch_questions(
    esa: Esa, questions: Sequence[BatchQuestion], answers: AnswersFile,
    ask_arguments: Mapping[str, Any], reporter: terminal.Reporter,
) -> None:  # fmt: skip
    """Answers the questions without a row in the answers file, and warns of files that cannot be
    read. Raises ResourceError, DocumentError: the answers cannot be written."""
    cache = OpenDocumentCache(esa)
    unanswered = [pair for pair in enumerate(questions) if not answers.has_row(pair[0])]
    progress, numbers = reporter.start_progress("", "questions"), itertools.count(1)
    progress(0, len(unanswered))
    for group in group_questions_by_documents(unanswered):
        files, refusal = group[0][1].files, None
        books, left_out = list[Any](), tuple[LeftOutFiles, ...]()
        cache.needed = files.paths
        try:
            gathered = gather_documents(files, cache.read_document).remove_repeated_texts()
            left_out = gathered.left_out
            books = [cache.open_document(document) for document in gathered.documents]
            for file in left_out[len(files.left_out) :]:
                reporter.warn(f"esa: {file.message}")
        except EsaError as error:
            refusal = error
        lists = {
            "missing": describe_unextracted_parts(books),
            "left_out": [file.to_dict() for file in left_out],
        }
        for index, question in group:
            names = list(question.documents)
            row = {"id": question.id, "question": question.question, "documents": names}
            try:
                if question.fault:
                    raise DocumentError(f"line {question.line}: {question.fault}")
                if refusal is not None:
                    raise refusal
                reply = esa.ask(question.question, books or (), **ask_arguments)
                row |= reply.to_json() | {name: value for name, value in lists.items() if value}
            except EsaError as error:
                row |= {"error": error.message, **({"hint": error.hint} if error.hint else {})}
            answers.add_row(index, {**row, "key": question.key})
            progress(next(numbers), len(unanswered))
