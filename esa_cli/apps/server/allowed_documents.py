"""Decides which documents a request of `esa serve` or `esa mcp` may name: the documents of the
command line, documents that clients have sent, files in the allowed folders, and texts of the
library. A name such as `library:*` stands for a whole group of them.

Symbolic links are resolved before a path is checked, so neither `..` nor a link leads out of an
allowed folder. The error for a refused path does not reveal whether a file exists there."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from esa_cli.apps.open_document_cache import OpenDocumentCache
from esa_cli.apps.server.session_documents import SESSION, SessionDocuments, parse_session
from esa_cli.apps.server.wire import ApiError
from esa_cli.documents.document import Document, read_document
from esa_cli.documents.readers.text_builder import shorten_name_list
from esa_cli.documents.sources import FoundFiles, find_readable_files
from esa_cli.errors import DiskError, DocumentError, LibraryError, UsageError
from esa_cli.qa.api import Esa
from esa_cli.qa.ingestion import library_texts
from esa_cli.qa.ingestion.library_texts import LibraryText
from esa_cli.storage.library import Library
from esa_cli.system.progress import Progress
from esa_cli.system.text import encode_text, has_lone_surrogate

STORED = "library:"
"""The beginning of ids of library texts; an entry's id follows, or 12 digits of a path's hash."""
GROUP = re.compile(r"(?:esa|library|folder:\d+|session:[\w-]+):\*")
"""Matches names of groups of documents."""


@dataclass(frozen=True)
class RequestableDocument:
    """A document that requests may name by its `id`. The document comes from the command line or
    from a client (`document`), from an allowed folder (`path`), or from the library (`text`)."""

    id: str
    path: str = ""
    text: LibraryText | None = None
    document: Document | None = None

    @property
    def kind(self) -> str:
        """Where the document comes from, as requests see it."""
        if self.document:
            return "session" if self.id.startswith(SESSION) else "given"
        return "file" if not self.text else "stored" if self.text.entries else "synced"

    def to_json(self) -> dict[str, Any]:
        """Returns what requests may know of the document; `folder` is the last folder of a library
        text's path, or the folder of a file below the allowed folder."""
        document, text, path = self.document, self.text, Path(self.path)
        if document:
            name, nbytes, folder = document.name, document.bytes, ""
        elif text:
            name, nbytes, folder = text.name, text.bytes, Path(text.path).parent.name
        else:
            name, nbytes = path.name, path.stat().st_size
            folder = self.id.rpartition("/")[0]
        facts = {"id": self.id, "object": "document", "name": name, "bytes": nbytes}
        return {**facts, "kind": self.kind, "folder": folder}

    def get_cache_key(self) -> str:
        """Returns the document's path, or its id with a digest of its text, as a key of caches."""
        return self.path or f"{self.id} {self.text.digest if self.text else ''}".rstrip()


class DocumentGroup(NamedTuple):
    """The documents for which the name `id` of a request stands; `name` is for display."""

    id: str
    name: str
    documents: list[RequestableDocument]


class OpenDocument(NamedTuple):
    """An opened document (`book`), and the id by which requests name the document."""

    id: str
    book: Any


class AllowedDocuments:
    """Finds, lists and opens the documents that requests to a server may name: `given_books`, which
    requests without names mean, files of folders, and with `with_library` the library's texts. A
    request opens at most `max_opened` documents, or all if that is None."""

    def __init__(
        self, esa: Esa, given_books: Sequence[Any], allowed_folders: Sequence[Path],
        library: Library | None = None, *, with_library: bool = False,
        max_opened: int | None = None,
    ) -> None:  # fmt: skip
        self.esa, self.given_books = esa, list(given_books)
        self.allowed_folders = [folder.resolve(strict=True) for folder in allowed_folders]
        self.library, self.has_stored = library or Library(), with_library
        self._limit = max_opened
        self._books = OpenDocumentCache(esa)
        self._given: dict[str, RequestableDocument] = {}
        for number, book in enumerate(given_books, 1):
            id = f"esa:{number}"
            self._given[id] = RequestableDocument(id, book.document.source, document=book.document)
            self._books.keep_document_open(book)
        self.sent = SessionDocuments(self._books.close_document)

    def resolve_documents(self, names: Sequence[str] | None) -> list[RequestableDocument]:
        """Returns the documents that a request names; without names all of the command line or, if
        there are none, of the library. Raises LibraryError, ApiError 400, 403, 404."""
        if names is not None:
            list_stored_texts = cache(self.list_stored_texts)
            found = list[RequestableDocument]()
            for name in names:
                if GROUP.fullmatch(name):
                    groups = self.iterate_groups(parse_session(name))
                    documents = next((one.documents for one in groups if one.id == name), [])
                    if not documents:
                        raise _make_missing_document_error(name)
                    found += documents
                else:
                    found.append(self._resolve_document(name, list_stored_texts))
            return found
        documents = list((self._given or self.list_stored_texts()).values())
        if not documents:
            hint = 'name a document, as {"documents": ["book.txt"]}'
            raise ApiError(400, f"the request names no document; {hint}", "documents")
        return documents

    def _resolve_document(
        self, name: str, list_stored_texts: Callable[[], dict[str, RequestableDocument]]
    ) -> RequestableDocument:
        if name in self._given:
            return self._given[name]
        given = [
            one for one in self._given.values()
            if one.document and name in (one.document.name, one.path)
        ]  # fmt: skip
        if len(given) == 1:
            return given[0]
        if name.startswith(SESSION):
            if sent := self.sent.list_documents(parse_session(name)).get(name):
                return RequestableDocument(name, document=sent)
            raise _make_missing_document_error(name)
        if self.has_stored and name.startswith(STORED):
            if name in list_stored_texts():
                return list_stored_texts()[name]
            raise _make_missing_document_error(name)
        try:
            return RequestableDocument(name, str(self._resolve_file_path(name)))
        except ApiError:
            stored = [(one.text, one) for one in list_stored_texts().values() if one.text]
            found = [one for one in stored if one[0].path == name]
            found = found or [one for one in stored if one[0].name == name]
            if (count := len({text.path or text.digest for text, _ in found})) > 1:
                wrong = f"{count} documents have the name {name}; use the id or path of one"
                raise ApiError(400, wrong, "documents") from None
            if found:
                return found[0][1]
            raise

    def iterate_groups(
        self, session: str = "", left_out_messages: list[str] | None = None
    ) -> Iterator[DocumentGroup]:
        """Yields all documents that requests of a session may name, each in one group. Messages
        about left-out files are added to `left_out_messages`, if that is a list, and also one about
        an unusable library; else the library raises LibraryError or DiskError."""
        left_out = [] if left_out_messages is None else left_out_messages
        yield DocumentGroup("esa:*", "Given to esa serve", list(self._given.values()))
        sent = [
            RequestableDocument(id, document=document)
            for id, document in self.sent.list_documents(session).items()
        ]
        yield DocumentGroup(f"{SESSION}{session}:*", "This session", sent)
        given = [book.document for book in self.given_books if book.document.stamp]
        paths = {str(Path(document.source).resolve()) for document in given}
        stored, listed = list[RequestableDocument](), dict[str, RequestableDocument]()
        try:
            listed = self.list_stored_texts()
        except (LibraryError, DiskError):
            if left_out_messages is None:
                raise
            left_out.append("the library cannot be used, so its documents are not listed")
        for document in listed.values():
            text = document.text
            path = str(Path(text.path).resolve()) if text and text.path else ""
            if path not in paths:
                stored.append(document)
                paths |= {path} - {""}
        yield DocumentGroup(f"{STORED}*", "Library", stored)
        for number, folder in enumerate(self.allowed_folders, 1):
            ids = self._list_folder_files(folder, left_out)
            documents = [RequestableDocument(ids[path], path) for path in ids if path not in paths]
            paths |= {document.path for document in documents}
            yield DocumentGroup(f"folder:{number}:*", folder.name, documents)

    def _resolve_file_path(self, file_name: str) -> Path:
        """Returns the resolved path of a file in an allowed folder, named as there or from the
        current folder, in which agents work. Raises ApiError 403, 404."""
        if not self.allowed_folders:
            ids = [*self._given][:1] + [f"{STORED}ID"] * self.has_stored
            only = f", only documents such as {' or '.join(ids)}" * bool(ids)
            raise ApiError(403, f"requests to this server may not name files{only}", "documents")
        is_inside = False
        folders = [(folder, folder) for folder in self.allowed_folders]
        for folder, base in folders + [(folder, Path()) for folder in self.allowed_folders]:
            # A loop of links, a zero byte and too long a name raise these errors.
            with suppress(OSError, ValueError, RuntimeError):
                path = (base / file_name).resolve()
                if path.is_relative_to(folder):
                    is_inside = True
                    if path.is_file():
                        return path
        if is_inside:
            raise _make_missing_document_error(file_name)
        raise ApiError(403, f"{file_name} is not in an allowed folder", "documents")

    def list_stored_texts(self) -> dict[str, RequestableDocument]:
        """Returns the library's texts for requests, by id. Raises LibraryError, DiskError."""
        if not self.has_stored:
            return {}
        found = {}
        for text in library_texts.load_library_texts(self.library).texts:
            digits = hashlib.blake2b(encode_text(text.path), digest_size=6).hexdigest()
            id = STORED + (text.entries[0].id if text.entries else digits)
            found[id] = RequestableDocument(id, text=text)
        return found

    def open_documents(
        self, named: Sequence[RequestableDocument], progress: Progress | None = None,
        question: str = "", left_out: list[str] | None = None, *, read: bool | None = None,
        open_book: Callable[[Document], Any] | None = None,
    ) -> list[OpenDocument]:  # fmt: skip
        """Opens the named documents or, if there are too many, those that fit the question best.
        Only the server's `JobThread` may call `open_documents`.

        Args:
            left_out: receives a message for each document that cannot be read.
            read: whether the model ingests unread documents; None: unless too many are named.
            open_book: a function that opens documents instead of the server's `Esa`.

        Raises ResourceError. DocumentError: none of the documents can be read."""
        lines = [] if left_out is None else left_out
        chosen, limit = list(named), len(named)
        given = [document for document in named if document.document]
        is_searched = self._limit is not None and len(named) - len(given) > self._limit
        if is_searched and self._limit is not None:
            chosen = [*given, *self._rank_documents_for_question(question, named, progress, lines)]
            limit = len(given) + self._limit
        needed = given if is_searched else chosen
        self._books.needed = [one.get_cache_key() for one in needed]
        opened: dict[str, OpenDocument] = {}
        refusal: DocumentError | None = None
        for document in chosen:
            if len(opened) >= limit:
                break
            try:
                text = self._books.read_document(
                    document.get_cache_key(), partial(self._load_document, document)
                )
                if open_book:
                    book = open_book(text)
                else:
                    ingests = bool(document.document) or not is_searched if read is None else read
                    book = self._books.open_document(text, progress, must_ingest=ingests)
            except DocumentError as error:
                refusal = refusal or error
                is_damaged = isinstance(error, LibraryError)
                why = f"{document.id} is damaged in the library" if is_damaged else error.message
                lines.append(f"left out: {why}")
            else:
                opened.setdefault(book.document.text, OpenDocument(document.id, book))
        if refusal and not opened:
            raise refusal
        return list(opened.values())

    def _rank_documents_for_question(
        self, question: str, named: Sequence[RequestableDocument], progress: Progress | None,
        left_out: list[str],
    ) -> list[RequestableDocument]:  # fmt: skip
        """Returns the named documents that can be read, those that fit a question best first."""
        files = {one.path: one for one in named if one.path and not one.document}
        texts = {document.text.digest: document for document in named if document.text}
        with self.library.open_search_catalogue() as catalogue:
            changes = library_texts.index_files(catalogue, list(files), progress)
            if refused := changes.refused_records:
                names = shorten_name_list([files[record.path].id for record in refused])
                count = "1 file" if len(refused) == 1 else f"{len(refused):,} files"
                left_out.append(f"left out: {count} that cannot be read ({names})")
            for record in changes.readable_records:
                texts.setdefault(record.digest, files[record.path])
            if self.has_stored:
                catalogue.index_stored_texts()
            order = catalogue.texts.rank_texts(question)
        return [texts[digest] for digest in dict.fromkeys([*order, *texts]) if digest in texts]

    def read_named_document(self, document_name: str) -> Document:
        """Reads a document without the model, in any thread. Raises DocumentError, ApiError."""
        named = self._resolve_document(document_name, cache(self.list_stored_texts))
        return self._books.read_document(named.get_cache_key(), partial(self._load_document, named))

    def _load_document(self, named: RequestableDocument, cache_key: str) -> Document:
        """Raises DocumentError, whose message does not reveal where the allowed folders are."""
        if named.document and not named.path:
            return named.document
        if named.text and named.text.entries:
            return library_texts.rebuild_stored_document(self.library, named.text.entries[0])
        try:
            return read_document(named.text.path if named.text else named.path)
        except DocumentError as error:
            if not named.path:
                raise
            texts = [text.replace(named.path, named.id) for text in (error.message, error.hint)]
            raise DocumentError(*texts) from error

    def _list_folder_files(self, folder: Path, left_out_messages: list[str]) -> dict[str, str]:
        """Returns the resolved paths of the readable files in an allowed folder, and their ids."""
        ids, found = dict[str, str](), FoundFiles()
        try:
            found = find_readable_files(str(folder))
            lines = [rest.message for rest in found.summarise_left_out_files(str(folder))]
        except DocumentError as error:
            lines = [f"{error.message}; {error.hint}"]
        left_out_messages += [line.replace(str(folder), folder.name) for line in lines]
        for path in found.files:
            id = Path(path).relative_to(folder).as_posix()
            # A file may have been removed meanwhile; JSON cannot have a name that is not UTF-8.
            with suppress(ApiError):
                if not has_lone_surrogate(id):
                    ids.setdefault(str(self._resolve_file_path(id)), id)
        return ids

    def store_document(self, document: Document, progress: Progress | None = None) -> str:
        """Stores a document in the library and returns its id. Only the server's `JobThread` may
        call it. Raises DiskError, LibraryError, ResourceError. UsageError: nothing is stored."""
        book = self.esa.ingest(document, progress, keep=True)
        if book.entry is None:
            hint = "run `esa serve` with a preset that indexes documents"
            raise UsageError("this server stores no documents in the library", hint)
        return STORED + book.entry.id


def _make_missing_document_error(document_name: str) -> ApiError:
    return ApiError(404, f"there is no document {document_name}", "documents", "document_not_found")


def make_documents_json(documents: AllowedDocuments, session: str = "") -> dict[str, Any]:
    """Returns the JSON of `GET /v1/documents`: documents that a session may name, and groups."""
    left_out: list[str] = []
    data, groups = list[dict[str, Any]](), list[dict[str, str]]()
    for group in documents.iterate_groups(session, left_out):
        if group.documents:
            groups.append({"id": group.id, "name": group.name})
        for document in group.documents:
            with suppress(OSError):  # the file has been removed meanwhile
                data.append({**document.to_json(), "group": group.id})
    return {"object": "list", "data": data, "groups": groups, "left_out": left_out}
