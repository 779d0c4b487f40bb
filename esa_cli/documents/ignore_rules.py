"""Rules of .gitignore files: which files of a folder are not read.

Names are compared in time that grows with the product of the lengths of pattern and name, whatever
the pattern: a `*` takes as few letters as it can and is not tried again.
"""

from __future__ import annotations

import os
import re
import stat
import string
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

MOST_BYTES = 1 << 18
"""Of a .gitignore file; a larger one, and one that is no file, is not read."""
_SKIPPED: re.Pattern[str] | None = None
"""Stands for `**`: any number of folders."""
_CLASSES = {
    "alnum": string.ascii_letters + string.digits, "alpha": string.ascii_letters, "blank": " \t",
    "cntrl": "".join(map(chr, (*range(32), 127))), "digit": string.digits,
    "graph": string.digits + string.ascii_letters + string.punctuation,
    "lower": string.ascii_lowercase, "print": string.printable[:95], "punct": string.punctuation,
    "space": string.whitespace, "upper": string.ascii_uppercase, "xdigit": string.hexdigits,
}  # fmt: skip


class IgnoreRule(NamedTuple):
    """One line of a .gitignore file.

    `names` match the parts of a path below the file's folder, or with `anywhere` its last part.
    """

    names: tuple[re.Pattern[str] | None, ...]
    anywhere: bool
    folders: bool
    negated: bool

    def matches(self, path: str, folder: bool) -> bool:
        if self.folders and not folder:
            return False
        names = path.split("/")
        return _match(self.names, names[-1:] if self.anywhere else names)


class IgnoreRules:
    """Rules of the .gitignore files above a path; the nearest file decides.

    `unread`: those that are no files, or too large.
    """

    def __init__(self, root: str) -> None:
        self._rules: dict[str, list[IgnoreRule]] = {}
        self.unread: list[str] = []
        above = Path(root)
        every = (above, *above.parents)
        # Not `Path.exists`, which raises where a folder may not be searched.
        repository = next((p for p in every if os.path.exists(p / ".git")), above)
        self._whole = False
        for folder in reversed(every):
            if folder.is_relative_to(repository):
                self._whole = self._whole or self.names(str(folder), folder=True)
                self.enter(str(folder))

    def enter(self, folder: str) -> None:
        """Adds the rules of a folder's own file; a second time they are read again."""
        path = os.path.join(folder, ".gitignore")
        try:
            text = _read(path)
        except OSError:
            return
        if text is None:
            self.unread += [path] if path not in self.unread else []
            return
        lines = (line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n"))
        self._rules[folder] = [rule for line in lines if (rule := parse(line))]

    def names(self, path: str, *, folder: bool) -> bool:
        """Whether a file or folder is ignored; those that it is in are not."""
        if self._whole:
            return True
        where, inside = os.path.split(path)
        while inside:
            for rule in reversed(self._rules.get(where, ())):
                if rule.matches(inside, folder):
                    return not rule.negated
            where, name = os.path.split(where)
            if not name:
                break
            inside = f"{name}/{inside}"
        return False


def _read(path: str) -> str | None:
    """None: it is no file, or too large. Raises OSError. A pipe is not waited for."""
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with open(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            return None
        data = file.read(MOST_BYTES + 1)
    return None if len(data) > MOST_BYTES else os.fsdecode(data)


def parse(line: str) -> IgnoreRule | None:
    """The rule of a line; None: git ignores the line, or nothing can match it."""
    if line.startswith("#"):
        return None
    glob = line.rstrip(" ")
    if (len(glob) - len(glob.rstrip("\\"))) % 2 and glob != line:
        glob += " "  # the blank that a backslash makes a letter
    negated, glob = glob.startswith("!"), glob.removeprefix("!")
    folders, glob = glob.endswith("/"), glob.removesuffix("/")
    names = _parsed(glob.removeprefix("/"))
    if not glob or names is None:
        return None
    return IgnoreRule(names, len(names) == 1 and "/" not in glob, folders, negated)


def _parsed(glob: str) -> tuple[re.Pattern[str] | None, ...] | None:
    """The names of a pattern; None: nothing can match it."""
    names: list[re.Pattern[str] | None] = []
    pieces, at = [""], 0
    """Regular expressions of one name, between its asterisks."""
    while at < len(glob):
        sign, at = glob[at], at + 1
        if quoted := sign == "\\":
            if at == len(glob):
                return None
            sign, at = glob[at], at + 1
        if sign == "/":
            names.append(_name(pieces))
            pieces = [""]
        elif sign == "*" and not quoted:
            pieces.append("")
        elif sign == "[" and not quoted:
            letters, at = _letters(glob, at)
            if not letters:
                return None
            pieces[-1] += letters
        else:
            pieces[-1] += "." if sign == "?" and not quoted else re.escape(sign)
    names.append(_name(pieces))
    if names[-1] is _SKIPPED:  # not the folder itself
        names.append(re.compile(".*", re.DOTALL))
    return tuple(names)


def _name(pieces: Sequence[str]) -> re.Pattern[str] | None:
    if len(pieces) > 2 and not any(pieces):
        return _SKIPPED
    first, *rest = pieces
    inner = "".join(f"(?>.*?{piece})" for piece in rest[:-1] if piece)
    return re.compile(first + inner + (f".*{rest[-1]}" if rest else ""), re.DOTALL)


def _letters(glob: str, at: int) -> tuple[str, int]:
    """A regular expression of one of the letters in brackets, of which the first was passed, and
    where it ends; empty: the brackets are not closed, or name no class."""
    negated = glob[at : at + 1] in ("!", "^")
    at += negated
    begin, before, found = at, "", []
    while at < len(glob) and (glob[at] != "]" or at == begin):
        sign, at = glob[at], at + 1
        if sign == "-" and before and glob[at : at + 1] not in ("", "]"):
            at += glob[at] == "\\"
            last, at = glob[at : at + 1], at + 1
            if last and before <= last:
                found.append(f"{re.escape(before)}-{re.escape(last)}")
            before = ""
            continue
        if sign == "[" and glob[at : at + 1] == ":":
            end = glob.find("]", at + 1)
            if end > at + 1 and glob[end - 1] == ":":
                if (name := glob[at + 1 : end - 1]) not in _CLASSES:
                    return "", at
                found.append(re.escape(_CLASSES[name]))
                before, at = "", end + 1
                continue
        if sign == "\\":
            sign, at = glob[at : at + 1], at + 1
        before = sign
        found.append(re.escape(sign))
    if at >= len(glob):
        return "", at
    if not found:
        return "." * negated, at + 1
    return f"[{'^' * negated}{''.join(found)}]", at + 1


def _match(patterns: Sequence[re.Pattern[str] | None], names: Sequence[str]) -> bool:
    """Whether all names match, in order; what follows a `**` is taken where it first fits."""
    pattern = name = 0
    again: tuple[int, int] | None = None
    while name < len(names):
        if pattern < len(patterns):
            one = patterns[pattern]
            if one is None:  # `_SKIPPED`
                pattern += 1
                again = pattern, name
                continue
            if one.fullmatch(names[name]):
                pattern, name = pattern + 1, name + 1
                continue
        if again is None:
            return False
        pattern, name = again[0], again[1] + 1
        again = pattern, name
    return pattern == len(patterns)
