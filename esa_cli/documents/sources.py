"""Finds the files for the names of documents; a name may be a file, a folder or a pattern.

A folder stands for all readable files below it, without links, hidden, binary or ignored files
(`.gitignore`), and without reports, chats and libraries of esa. An existing path is not read as a
pattern. In .gitignore files, classes such as `[[:alpha:]]` and backslashes in brackets are not
supported."""

from __future__ import annotations

import difflib
import fnmatch
import os
import re
import stat
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from esa_cli.documents.readers.plain_text import describe_binary
from esa_cli.documents.readers.reader_registry import choose_reader
from esa_cli.documents.readers.text_builder import shorten_name_list
from esa_cli.errors import DocumentError, UsageError
from esa_cli.system.files import LIBRARY_MARKER, resolve_links

MAX_FILES = 10_000
_HEAD = 1 << 13
_SIGNS = ("*", "?", "[")
_HIDDEN = (".", "~$")
"""Beginnings of names; Word and Excel write `~$x.docx` while x.docx is open."""
_OF_ZOTERO = ("styles", "translators", "locate", "cache", "pipes", "logs")
"""Folders beside Zotero's data base that have none of the user's documents."""
_IGNORED = "ignored by .gitignore"
_UNREADABLE = "may not be read"
_OWN = "written by esa"
_UNNAMED = ("hidden", _IGNORED, f"folder {_IGNORED}", _OWN, f"folder {_OWN}")
"""Reasons that everyone expects, often of thousands of files: such files are counted, not named."""

MAX_IGNORE_BYTES = 1 << 18
"""The maximum size of a .gitignore file in bytes; a larger file is not read."""
WRITTEN_BY_ESA = "<!-- written by esa -->"
"""The first line of a report or chat of esa, after an HTML page's doctype. A folder's files with
this line are left out, since their answers would come from former answers."""
_OWN_FILE = re.compile(rf"(?:<!doctype html>\s*)?{WRITTEN_BY_ESA}".encode())
_QUOTED = re.compile(r"\\(.)", re.DOTALL)


class DocumentFilePath(NamedTuple):
    """The path of a document, and the folder or pattern through which it was found, if any."""

    path: str
    pattern: str = ""


class LeftOutFiles(NamedTuple):
    """One file, or several files of a folder or pattern, that are not read."""

    source: str
    why: str  # the reason
    files: int | None = None  # the number of the other files, which are read

    @property
    def message(self) -> str:
        if self.files is None:
            return f"left out: {self.why}"
        files = "file" if self.files == 1 else "files"
        return f"{self.source}: {self.files} {files} to read; left out: {self.why}"

    def to_dict(self) -> dict[str, str]:
        return {"source": self.source, "why": self.why}


@dataclass(frozen=True)
class InputFiles:
    """The files to be read for given names of documents, in order, and the files that are left out.
    A file that is named twice occurs twice; folders and patterns only add files that are new."""

    sources: tuple[DocumentFilePath, ...] = ()
    left_out: tuple[LeftOutFiles, ...] = ()
    divided: bool = False  # whether other processes (shards) read other files of the same folders

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(source.path for source in self.sources)


@dataclass
class FoundFiles:
    """The files found in one folder or by one pattern, and the left-out paths grouped by reason."""

    files: list[str] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def summarise_left_out_files(self, source: str) -> tuple[LeftOutFiles, ...]:
        """Counts the left-out files of the folder or pattern `source` by reason, for a message."""
        reasons = []
        for why, paths in sorted(self.left_out.items()):
            shown = why
            if len(paths) > 1:
                shown = re.sub("^folder", "folders", why).replace("that links", "that link")
            reasons.append(f"{len(paths):,} {shown}")
            if why not in _UNNAMED:  # someone may miss one of these files
                if os.path.isdir(source):
                    paths = [os.path.relpath(path, source) for path in paths]
                reasons[-1] += f" ({shorten_name_list(sorted(paths))})"
        return (LeftOutFiles(source, ", ".join(reasons), len(self.files)),) if reasons else ()


def find_files(document_names: Sequence[str]) -> InputFiles:
    """Finds the files to be read for given names. Raises UsageError: standard input is named
    twice. DocumentError: a file is missing, or a folder or pattern has none, or too many."""
    if list(document_names).count("-") > 1:
        raise UsageError("standard input (-) can be read only once")
    sources: list[DocumentFilePath] = []
    left_out: list[LeftOutFiles] = []
    for name in document_names:
        if not _is_folder_or_pattern(name):
            if name != "-" and not os.path.lexists(name):
                raise make_missing_document_error(name)
            sources.append(DocumentFilePath(name))
            continue
        found = find_readable_files(name)
        rest = found.summarise_left_out_files(name)
        if not found.files:
            line = rest[0].message if rest else f"{name}: no file matches"
            hint = f"check the path {name}"
            if not rest and os.path.isdir(name):
                removed = f"if its files were removed: esa ingest --prune --yes {name}"
                hint += f", or that its disk is mounted; {removed}"
            raise DocumentError(f"there is no document in {line}", hint)
        known = {source.path for source in sources}
        sources += [DocumentFilePath(file, name) for file in found.files if file not in known]
        left_out += rest
    return InputFiles(tuple(sources), tuple(left_out))


def make_missing_document_error(path: str) -> DocumentError:
    """Makes the error of a path at which there is nothing; its hint names a similar file."""
    return DocumentError(f"there is no document {path}", _suggest_path(path))


def _suggest_path(missing_path: str) -> str:
    if missing_path.startswith(("http://", "https://")):
        return "documents are files: fetch the page first, and name the file"
    folder, name = os.path.split(missing_path)
    try:
        others = os.listdir(folder or ".")
    except OSError:
        return f"there is no folder {folder} either"
    stems = {Path(other).stem: other for other in others}  # without endings, which many files share
    for similar in difflib.get_close_matches(Path(name).stem, stems, n=1):
        return f"did you mean {os.path.join(folder, stems[similar])}?"
    return f"check the path; {os.path.abspath(folder)} has no such file"


def _is_folder_or_pattern(source: str) -> bool:
    if source == "-" or "\0" in source:
        return False
    if os.path.lexists(source):
        return os.path.isdir(source)
    return any(sign in source for sign in _SIGNS)


def find_readable_files(folder_or_pattern: str) -> FoundFiles:
    """Finds the readable files of a folder or pattern. Raises DocumentError: too many files."""
    found_files = FoundFiles()
    iterate_files = _find_folder_files if os.path.isdir(folder_or_pattern) else _find_matching_files
    for path in iterate_files(folder_or_pattern, found_files):
        if why := _explain_why_file_is_left_out(path):
            found_files.left_out[why].append(path)
            continue
        found_files.files.append(path)
        if len(found_files.files) > MAX_FILES:
            message = f"{folder_or_pattern} has more than {MAX_FILES:,} readable files"
            hint = "name a smaller folder, or a pattern such as 'docs/**/*.md'"
            raise DocumentError(message, hint)
    return found_files


def _find_matching_files(pattern: str, found_files: FoundFiles) -> Iterator[str]:
    """Yields the files that match a pattern; hidden files match only patterns with hidden names.
    The pattern `**` does not follow links, because links to folders may form circles."""
    path = Path(pattern)
    parts = [part if part == "**" else re.sub(r"\*\*+", "*", part) for part in path.parts]
    parts += ["*"] * (parts[-1] == "**")
    relative = os.path.join(*parts).removeprefix(path.anchor)
    hidden = re.compile(r"\.(?!\.$)")
    show_hidden = any(map(hidden.match, parts))
    for match in sorted(Path(path.anchor).glob(relative)):
        if match.is_dir() or (not show_hidden and any(map(hidden.match, match.parts))):
            continue
        if match.name.startswith("~$"):
            found_files.left_out["hidden"].append(os.fspath(match))
        else:
            yield os.fspath(match)


def _find_folder_files(folder: str, found_files: FoundFiles) -> Iterator[str]:
    """Yields the files in a folder and its subfolders that are not hidden, ignored or links."""
    rules = GitignoreRules(resolve_links(folder))

    def record_unreadable_folder(error: OSError) -> None:
        if error.filename == folder:
            problem = f"the folder {folder} cannot be read: {error.strerror}"
            raise DocumentError(problem, f"try: chmod u+rx {folder}") from error
        found_files.left_out[f"folder that {_UNREADABLE}"].append(str(error.filename))

    for where, folders, files in os.walk(folder, onerror=record_unreadable_folder):
        if LIBRARY_MARKER in files:
            found_files.left_out[f"folder {_OWN}"].append(where)
            folders.clear()
            continue
        real = resolve_links(where)
        rules.add_folder_rules(real)
        for names, is_folder in ((folders, True), (files, False)):
            kept = []
            for name in sorted(names):
                path, why = os.path.join(where, name), ""
                of_zotero = is_folder and name in _OF_ZOTERO and "zotero.sqlite" in files
                if name.startswith(_HIDDEN) or of_zotero:
                    why = "hidden"
                elif os.path.islink(path):
                    why = "that links elsewhere"
                elif rules.is_ignored(os.path.join(real, name), is_folder=is_folder):
                    why = _IGNORED
                if why:
                    prefix = "folder " if is_folder and why != "hidden" else ""
                    found_files.left_out[prefix + why].append(path)
                else:
                    kept.append(name)
            names[:] = kept  # os.walk goes into the folders that remain
        yield from (os.path.join(where, name) for name in files)


def _explain_why_file_is_left_out(file_path: str) -> str:
    """Returns the reason why a file is left out, or an empty text if the file is to be read."""
    try:
        info = os.stat(file_path)
        if not stat.S_ISREG(info.st_mode):
            return "neither file nor folder"
        if not info.st_size:
            return "hidden" if file_path.endswith(".lock") else "empty"  # a lock file of esa
        with open(file_path, "rb") as stream:
            head = stream.read(_HEAD)
    except OSError:
        return f"that {_UNREADABLE}"
    if _OWN_FILE.match(head):
        return _OWN
    return "" if choose_reader(head, file_path).binary else describe_binary(head)


class _GitignoreRule(NamedTuple):
    """A rule of a .gitignore file. The `pattern` matches paths relative to the file's folder, with
    newlines in place of slashes, or only the last name of a path if `anywhere` is true."""

    pattern: re.Pattern[str]
    anywhere: bool
    folders_only: bool
    negated: bool


class GitignoreRules:
    """The rules of all .gitignore files of a repository; the file nearest to a path decides."""

    def __init__(self, root: str) -> None:
        self._rules: dict[str, list[_GitignoreRule]] = {}
        folders = (Path(root), *Path(root).parents)
        # Not `Path.exists`, which raises where a folder may not be searched.
        repository = next((p for p in folders if os.path.exists(p / ".git")), folders[0])
        self._ignores_root = False
        for folder in reversed(folders):
            if folder.is_relative_to(repository):
                self._ignores_root |= self.is_ignored(str(folder), is_folder=True)
                self.add_folder_rules(str(folder))

    def add_folder_rules(self, folder_path: str) -> None:
        path = os.path.join(folder_path, ".gitignore")
        data = b""
        # Only a regular file is read, because a pipe or a device may have no end.
        with suppress(OSError):
            if os.path.isfile(path) and os.path.getsize(path) <= MAX_IGNORE_BYTES:
                data = Path(path).read_bytes()
        lines = os.fsdecode(data).removeprefix("\ufeff").split("\n")
        rules = (_parse_gitignore_rule(line.removesuffix("\r")) for line in lines)
        self._rules[folder_path] = [rule for rule in rules if rule]

    def is_ignored(self, path: str, *, is_folder: bool) -> bool:
        """Returns True if a .gitignore rule ignores `path` itself, not only a folder above it."""
        if self._ignores_root:
            return True
        for folder in map(str, Path(path).parents):
            inside = path.removeprefix(folder).removeprefix(os.sep)
            lines = inside.replace("\n", " ").replace(os.sep, "\n")
            for rule in reversed(self._rules.get(folder, ())):
                matched = lines.rpartition("\n")[2] if rule.anywhere else lines
                if (is_folder or not rule.folders_only) and rule.pattern.match(matched):
                    return not rule.negated
        return False


def _parse_gitignore_rule(rule_line: str) -> _GitignoreRule | None:
    """Parses a line of a .gitignore file; returns None if the line has no valid pattern."""
    if rule_line.startswith("#"):
        return None
    pattern = rule_line.rstrip(" ")
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2 and pattern != rule_line:
        pattern += " "  # a backslash keeps the blank
    negated, pattern = pattern.startswith("!"), pattern.removeprefix("!")
    folders_only, pattern = pattern.endswith("/"), pattern.removesuffix("/")
    if not pattern or re.search(r"(?<!\\)(?:\\\\)*\\$", pattern):
        return None
    names = pattern.removeprefix("/").split("/")
    anywhere = len(names) == 1 and "/" not in pattern
    groups: list[str] = [""]  # the names before, between and after each `**`
    for name in names:
        if len(name) > 1 and not name.strip("*"):
            groups += [""] if groups[-1] or len(groups) == 1 else []
        else:
            groups[-1] += _convert_gitignore_pattern(name) + r"\n"
    # The last group is empty after `a/**`, which does not match the folder `a` itself.
    groups[-1] = (groups[-1] or _convert_gitignore_pattern("*") + r"\n").removesuffix(r"\n") + r"\Z"
    # A group after `**` is taken where it first fits.
    first, *others = groups
    regex = first + "".join(rf"(?>(?:.*\n)*?{group})" for group in others)
    return _GitignoreRule(re.compile(regex), anywhere, folders_only, negated)


def _convert_gitignore_pattern(pattern: str) -> str:
    """Converts a .gitignore pattern for one name of a path into a regular expression, whose search
    time is at most proportional to the product of the lengths of pattern and name."""
    quoted = _QUOTED.sub(lambda found: f"[{found[1]}]" if found[1] in "*?[" else found[1], pattern)
    regex = fnmatch.translate(quoted.replace("[^", "[!"))
    return regex.removeprefix("(?s:").removesuffix(r")\Z").replace("[^", r"[^\n")
