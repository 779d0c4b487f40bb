"""Rules of .gitignore files: which files of a folder are not read.

A name is compared by the regular expression of `fnmatch`, whose atomic groups take time that grows
with the product of the lengths of pattern and name, whatever the pattern. Of git's rules it lacks
classes such as `[[:alpha:]]` and backslashes inside brackets.
"""

from __future__ import annotations

import fnmatch
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

MOST_BYTES = 1 << 18
"""Of a .gitignore file; a larger one, and one that is no file, is not read."""
_QUOTED = re.compile(r"\\(.)", re.DOTALL)


class IgnoreRule(NamedTuple):
    """One line of a .gitignore file.

    `pattern` matches a path below the file's folder, or with `anywhere` its last part; newlines
    are in place of slashes.
    """

    pattern: re.Pattern[str]
    anywhere: bool
    folders: bool
    negated: bool

    def matches(self, path: str, folder: bool) -> bool:
        if self.folders and not folder:
            return False
        path = path.rpartition("/")[2] if self.anywhere else path
        return self.pattern.match(path.replace("\n", " ").replace("/", "\n")) is not None


class IgnoreRules:
    """Rules of the .gitignore files above a path; the nearest file decides."""

    def __init__(self, root: str) -> None:
        self._rules: dict[str, list[IgnoreRule]] = {}
        above = Path(root)
        folders = (above, *above.parents)
        # Not `Path.exists`, which raises where a folder may not be searched.
        repository = next((p for p in folders if os.path.exists(p / ".git")), above)
        self._whole = False
        for folder in reversed(folders):
            if folder.is_relative_to(repository):
                self._whole = self._whole or self.names(str(folder), folder=True)
                self.enter(str(folder))

    def enter(self, folder: str) -> None:
        """Adds the rules of a folder's own file; a second time they are read again."""
        path = os.path.join(folder, ".gitignore")
        data = b""
        # Not of a pipe or a device, which may have no end.
        with suppress(OSError):
            if os.path.isfile(path) and os.path.getsize(path) <= MOST_BYTES:
                data = Path(path).read_bytes()
        lines = os.fsdecode(data).removeprefix("\ufeff").split("\n")
        self._rules[folder] = [rule for line in lines if (rule := parse(line.removesuffix("\r")))]

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


def parse(line: str) -> IgnoreRule | None:
    """The rule of a line; None: it has none."""
    if line.startswith("#"):
        return None
    pattern = line.rstrip(" ")
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2 and pattern != line:
        pattern += " "  # the blank that a backslash makes a letter
    negated, pattern = pattern.startswith("!"), pattern.removeprefix("!")
    folders, pattern = pattern.endswith("/"), pattern.removesuffix("/")
    if not pattern or re.search(r"(?<!\\)(?:\\\\)*\\$", pattern):
        return None
    names = pattern.removeprefix("/").split("/")
    anywhere = len(names) == 1 and "/" not in pattern
    groups: list[str] = [""]  # what stands before, between and after the `**`
    for name in names:
        if len(name) > 1 and not name.strip("*"):
            groups += [""] if groups[-1] or len(groups) == 1 else []
        else:
            groups[-1] += _name(name) + r"\n"
    # The last one is empty after `a/**`, which is not the folder itself.
    groups[-1] = (groups[-1] or _name("*") + r"\n").removesuffix(r"\n") + r"\Z"
    # What follows a `**` is taken where it first fits.
    first, *others = groups
    regex = first + "".join(rf"(?>(?:.*\n)*?{group})" for group in others)
    return IgnoreRule(re.compile(regex), anywhere, folders, negated)


def _name(pattern: str) -> str:
    """A regular expression of one name of a path."""
    quoted = _QUOTED.sub(lambda found: f"[{found[1]}]" if found[1] in "*?[" else found[1], pattern)
    regex = fnmatch.translate(quoted.replace("[^", "[!"))
    return regex.removeprefix("(?s:").removesuffix(r")\Z").replace("[^", r"[^\n")
