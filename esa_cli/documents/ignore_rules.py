"""Rules of .gitignore files, which exclude files of a folder from reading.

`fnmatch` translates names: its atomic groups take time of at most the product of the lengths of
pattern and name. Classes such as `[[:alpha:]]` and backslashes inside brackets are not supported.
"""

from __future__ import annotations

import fnmatch
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

MAX_BYTES = 1 << 18
"""Length of a .gitignore file that is read; a longer one is not."""
_QUOTED = re.compile(r"\\(.)", re.DOTALL)


class _IgnoreRule(NamedTuple):
    """One line of a .gitignore file: a pattern for the path below the file's folder, or with
    `anywhere` for the last part of the path; newlines stand for slashes."""

    pattern: re.Pattern[str]
    anywhere: bool
    folders_only: bool
    negated: bool


class IgnoreRules:
    """Rules of the .gitignore files of a folder's repository; the file nearest to a path wins."""

    def __init__(self, root: str) -> None:
        self._rules: dict[str, list[_IgnoreRule]] = {}
        folders = (Path(root), *Path(root).parents)
        # Not `Path.exists`, which raises where a folder may not be searched.
        repository = next((p for p in folders if os.path.exists(p / ".git")), folders[0])
        self._ignores_root = False
        for folder in reversed(folders):
            if folder.is_relative_to(repository):
                self._ignores_root = self._ignores_root or self.is_ignored(str(folder), folder=True)
                self.add_folder_rules(str(folder))

    def add_folder_rules(self, folder: str) -> None:
        """Adds the rules of the .gitignore file in this folder, if there is one."""
        path = os.path.join(folder, ".gitignore")
        data = b""
        # Not of a pipe or a device, which may have no end.
        with suppress(OSError):
            if os.path.isfile(path) and os.path.getsize(path) <= MAX_BYTES:
                data = Path(path).read_bytes()
        lines = os.fsdecode(data).removeprefix("\ufeff").split("\n")
        rules = (_parse_rule(line.removesuffix("\r")) for line in lines)
        self._rules[folder] = [rule for rule in rules if rule]

    def is_ignored(self, path: str, *, folder: bool) -> bool:
        """Returns True if a rule ignores this path itself; folders above it are not checked."""
        if self._ignores_root:
            return True
        where, inside = os.path.split(path)
        while inside:
            lines = inside.replace("\n", " ").replace("/", "\n")
            for rule in reversed(self._rules.get(where, ())):
                path = lines.rpartition("\n")[2] if rule.anywhere else lines
                if (folder or not rule.folders_only) and rule.pattern.match(path):
                    return not rule.negated
            where, name = os.path.split(where)
            if not name:
                break
            inside = f"{name}/{inside}"
        return False


def _parse_rule(line: str) -> _IgnoreRule | None:
    """Parses a line of a .gitignore file; returns None for an empty line, a comment or no
    pattern."""
    if line.startswith("#"):
        return None
    pattern = line.rstrip(" ")
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2 and pattern != line:
        pattern += " "  # a backslash makes the blank a letter
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
            groups[-1] += _translate_name(name) + r"\n"
    # The last one is empty after `a/**`, which is not the folder itself.
    groups[-1] = (groups[-1] or _translate_name("*") + r"\n").removesuffix(r"\n") + r"\Z"
    # A group after `**` is taken where it first fits.
    first, *others = groups
    regex = first + "".join(rf"(?>(?:.*\n)*?{group})" for group in others)
    return _IgnoreRule(re.compile(regex), anywhere, folders_only, negated)


def _translate_name(pattern: str) -> str:
    """Translates the pattern of one name of a path into a regular expression."""
    quoted = _QUOTED.sub(lambda found: f"[{found[1]}]" if found[1] in "*?[" else found[1], pattern)
    regex = fnmatch.translate(quoted.replace("[^", "[!"))
    return regex.removeprefix("(?s:").removesuffix(r")\Z").replace("[^", r"[^\n")
