"""Rules of .gitignore files, compared with git's own, and files that are made to do harm."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from properties import seeds

from esa_cli.documents.sources import MAX_IGNORE_BYTES, GitignoreRules, find_readable_files

PARTS = (
    "a", "b", "A", "-", "!", "#", " ", "*", "*", "**", "?", "/", "/", "/", ".", "\\", "]", "[ab]",
    "[!a]", "[^a-b]", "[z-a]", "[!z-a]", "[]a]", "\r", "**/", "/**", "/**/", "\t",
)  # fmt: skip
NAMES = ("a", "b", "A", "ab", "ba", "a b", "a ", "!", "#", "a!", "-", "]", "\\", "a.b", "[")


def drawn(draw: random.Random) -> str:
    """A line of ASCII, as git compares bytes; it reads two asterisks that are no whole name, and a
    backslash before a slash, in ways of its own."""
    while True:
        line = "".join(draw.choice(PARTS) for _ in range(draw.randrange(1, 7)))
        names = line.removeprefix("!").split("/")
        if r"\/" not in line and not any("**" in name and name.strip("*") for name in names):
            return line


@pytest.mark.skipif(shutil.which("git") is None, reason="git is the peer")
def test_as_git_ignores(tmp_path: Path) -> None:
    for number, seed in enumerate(seeds(4)):
        (root := tmp_path / str(number)).mkdir()
        ignores_as_git(root, random.Random(seed))
        shutil.rmtree(root)


def ignores_as_git(root: Path, draw: random.Random) -> None:
    folders = ["", *(f"{draw.choice(NAMES)}/" for _ in range(3))]
    folders += [f"{folder}{draw.choice(NAMES)}/" for folder in folders[1:]]
    paths = sorted({folder + name for folder in folders for name in NAMES} - {""})
    for folder in folders:
        (root / folder).mkdir(parents=True, exist_ok=True)
    for path in paths:
        if not (root / path).exists():
            (root / path).write_text("x")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    for _ in range(12):
        rules = {
            folder: "\n".join(drawn(draw) for _ in range(draw.randrange(1, 5)))
            for folder in dict.fromkeys(folders[:3])
        }
        for folder, lines in rules.items():
            (root / folder / ".gitignore").write_bytes(lines.encode())
        assert read(root) == read_by_git(root), rules


def read(root: Path) -> set[str]:
    """The files that are not ignored."""
    found = find_readable_files(str(root)).files
    return {os.path.relpath(path, root) for path in found}


def read_by_git(root: Path) -> set[str]:
    options = ["-c", "core.excludesFile=", "ls-files", "-zo", "--exclude-per-directory=.gitignore"]
    listed = subprocess.run(["git", *options], cwd=root, check=True, capture_output=True).stdout
    return {path for path in os.fsdecode(listed).split("\0") if path and ".gitignore" not in path}


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("a*" * 30 + "b", "a" * 250),
        ("*a" * 30 + "b", "a" * 250),
        ("[ab]*" * 30 + "c", "ab" * 120),
        ("**/a/" * 30 + "b", "a/" * 100 + "a"),
    ],
)
def test_no_pattern_takes_long(tmp_path: Path, line: str, name: str) -> None:
    (tmp_path / ".gitignore").write_text(line)
    rules, start = GitignoreRules(str(tmp_path)), time.process_time()
    assert not rules.is_ignored(str(tmp_path / name), is_folder=False)
    assert time.process_time() - start < 1


LINES = st.text(st.sampled_from("ab*?[]!^-\\/. #\r\n\0é\udcff"), max_size=60) | st.text(max_size=20)


@given(LINES, st.integers(1, 400))
@example("a*" * 30 + "b", 1)
@example("!", 1)
@example("[z-a]", 99)
def test_any_lines_are_rules_and_take_no_time(tmp_path: Path, lines: str, times: int) -> None:
    data = (lines * times).encode("utf-8", "surrogateescape")
    (tmp_path / ".gitignore").write_bytes(data)
    start = time.process_time()
    rules = GitignoreRules(str(tmp_path))
    for name in ("a" * 250, "a/" * 100 + "b", "\n"):
        rules.is_ignored(str(tmp_path / name), is_folder=False)
    assert time.process_time() - start < 3


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    for number, folder in enumerate(("pipe", "zero", "large", "folder", "missing")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text(str(number))
    os.mkfifo(tmp_path / "pipe" / ".gitignore")
    (tmp_path / "zero" / ".gitignore").symlink_to("/dev/zero")
    (tmp_path / "large" / ".gitignore").write_text("a.txt\n" * MAX_IGNORE_BYTES)
    (tmp_path / "folder" / ".gitignore").mkdir()
    (tmp_path / "missing" / ".gitignore").symlink_to("nowhere")
    assert len(find_readable_files(str(tmp_path)).files) == 5


def test_a_folder_below_an_ignored_one_is_ignored(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / ".gitignore").write_text("a/\n")
    (tmp_path / "a" / ".gitignore").write_text("!*\n")
    assert GitignoreRules(f"{tmp_path}/a/b").is_ignored(f"{tmp_path}/a/b/c", is_folder=False)
