"""Folders and patterns: which files they mean, and that what is left out is said."""

from __future__ import annotations

import glob
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import sample_files as make
from hypothesis import example, given
from hypothesis import strategies as st
from properties import seeds

from esa_cli.apps.cli.commands.chat_command import format_chat_as_markdown
from esa_cli.documents import sources
from esa_cli.documents.document import Document, gather_documents, read_document
from esa_cli.documents.sources import (
    MAX_IGNORE_BYTES,
    GitignoreRules,
    find_files,
    find_readable_files,
)
from esa_cli.errors import DocumentError
from esa_cli.qa.answering.reply import Reply
from esa_cli.qa.evidence import make_evidence_page
from esa_cli.storage.library.disk import LibraryPaths


def expand(names: list[str], say: Callable[[str], None] = print) -> list[str]:
    found = find_files(names)
    for left_out in found.left_out:
        say(left_out.message)
    return list(found.paths)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of many kinds of files, below the current one."""
    others = (".secret", ".git/config", "build/out.txt", "x.log", "deep/keep.log", "deep/er/c.py")
    files: dict[str, bytes] = {
        "docs/b.md": b"b",
        "docs/a.txt": b"a",
        "docs/deep/wide.txt": "wide".encode("utf-16"),
        "docs/paper.pdf": make.pdf(["paper"]),
        "docs/empty.txt": b"",
        "docs/logo.png": b"\x89PNG\r\n\x1a\n\0",
        "docs/data.bin": b"ab\0c" * 9,
        "docs/.gitignore": b"build/\n*.log\n",
        "docs/deep/.gitignore": b"!keep.log\n",
        "other/d.txt": b"d",
        **{f"docs/{name}": name.encode() for name in others},
    }
    for name, data in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_folder_means_its_readable_files(tree: Path) -> None:
    said: list[str] = []
    os.symlink(tree / "other" / "d.txt", tree / "docs" / "out.txt")
    os.symlink(tree / "other", tree / "docs" / "away")
    os.symlink(tree / "docs" / "a.txt", tree / "docs" / "same.txt")
    assert expand(["docs"], said.append) == [
        "docs/a.txt", "docs/b.md", "docs/paper.pdf", "docs/deep/keep.log", "docs/deep/wide.txt",
        "docs/deep/er/c.py",
    ]  # fmt: skip
    assert said == [
        "docs: 6 files to read; left out: 2 binary (data.bin, logo.png), 1 empty (empty.txt), "
        "1 folder ignored by .gitignore, 1 folder that links elsewhere (away), 4 hidden, "
        "1 ignored by .gitignore, 2 that link elsewhere (out.txt, same.txt)"
    ]


@pytest.mark.parametrize("head", [b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\0", b"{\\rtf1 words}"])
def test_files_of_other_programs_are_told_from_binary_ones(tree: Path, head: bytes) -> None:
    (tree / "other" / "letter").write_bytes(head)
    (tree / "other" / "photo").write_bytes(b"\xff\xd8\0")
    left_out = sources.find_readable_files("other").left_out
    assert left_out.pop("binary") == ["other/photo"]
    assert [*left_out.values()] == [["other/letter"]]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes of POSIX")
def test_several_pipes_are_left_out(tree: Path) -> None:
    said: list[str] = []
    for name in ("one", "two"):
        os.mkfifo(tree / "other" / name)
    assert expand(["other"], said.append) == ["other/d.txt"]
    assert said == ["other: 1 file to read; left out: 2 neither file nor folder (one, two)"]


def test_patterns_mean_what_those_of_glob_do(tree: Path) -> None:
    (tree / "docs" / "deep" / "b").mkdir()
    (tree / "docs" / "deep" / "b" / "x.md").write_text("x")
    for pattern in ("**", "docs/**", "**/*.md", "d*/**/*", "**/deep/**/*.??", "docs/**/b/x.md"):
        named = [path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)]
        found = sources.find_readable_files(pattern)
        left_out = [path for paths in found.left_out.values() for path in paths]
        assert sorted([*found.files, *left_out]) == sorted(named), pattern


def test_a_pattern_follows_each_folder_once(tree: Path) -> None:
    for name in "abcdef":
        (tree / "docs" / "deep" / name).symlink_to(".")
        (tree / "docs" / name).symlink_to("..")
    assert expand(["docs/deep/**/*.txt"]) == ["docs/deep/wide.txt"]
    assert expand(["docs/**/*.txt"]) == ["docs/a.txt", "docs/build/out.txt", "docs/deep/wide.txt"]


def test_a_path_that_exists_is_itself(tree: Path) -> None:
    (tree / "a[1]*.md").write_text("odd")
    assert expand(["a[1]*.md", "-"]) == ["a[1]*.md", "-"]
    for missing in ("missing.txt", "a\0*"):
        with pytest.raises(DocumentError, match="there is no document"):
            expand(["a[1]*.md", missing])


def test_what_is_left_out_comes_as_data(tree: Path) -> None:
    (tree / "docs" / "scan.pdf").write_bytes(make.pdf([None]))
    (tree / "docs" / "same.txt").write_bytes(b"a")
    found = gather_documents(find_files(["docs/a.txt", "docs", "docs/*.txt", "other"]))
    assert [d.source for d in found.documents] == [
        "docs/a.txt", "docs/b.md", "docs/paper.pdf", "docs/same.txt", "docs/deep/keep.log",
        "docs/deep/wide.txt", "docs/deep/er/c.py", "other/d.txt",
    ]  # fmt: skip
    folder, pattern, scan = [one.to_dict() for one in found.left_out]
    assert folder["source"] == "docs"
    assert "2 binary" in folder["why"]
    assert pattern == {"source": "docs/*.txt", "why": "1 empty (docs/empty.txt)"}
    assert scan["source"] == "docs/scan.pdf"
    once = found.remove_repeated_texts()
    assert [d.source for d in once.documents] == [
        d.source for d in found.documents if d.source != "docs/same.txt"
    ]
    assert once.left_out[:3] == found.left_out
    assert once.left_out[3].why == "docs/same.txt: the same text again, asked once"


def test_folders_of_zotero_itself_and_of_obsidian_are_left_out(tmp_path: Path) -> None:
    """A folder `styles` is read where no data base of Zotero is beside it."""
    names = [
        "zotero.sqlite", "styles/apa.csl", "translators/a.js", "storage/ABCD2345/a.txt",
        "storage/ABCD2345/.zotero-ft-cache", "storage/ABCD2345/styles/b.txt", "notes/c.md",
        ".obsidian/app.json", ".trash/old.md",
    ]  # fmt: skip
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("\0" if name == "zotero.sqlite" else "words")
    found = sources.find_readable_files(str(tmp_path))
    read = [os.path.relpath(path, tmp_path) for path in found.files]
    assert sorted(read) == [
        "notes/c.md", "storage/ABCD2345/a.txt", "storage/ABCD2345/styles/b.txt"
    ]  # fmt: skip
    assert len(found.left_out["hidden"]) == 5


def test_a_library_in_a_folder_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words")
    paths = LibraryPaths(tmp_path / "kept" / "library")
    paths.create_library_folders()
    (paths.documents / "x.text").write_text("esa-library text")
    found = sources.find_readable_files(str(tmp_path))
    assert found.files == [str(tmp_path / "a.txt")]
    assert found.left_out == {"folder written by esa": [str(paths.root)]}
    assert sources.find_readable_files(str(paths.root)).files == []


def test_reports_and_chats_of_esa_are_left_out_of_folders(tree: Path) -> None:
    """A page that only mentions them is read."""
    chat = format_chat_as_markdown("model", ["a.txt"], [("Who?", Reply("Ahab"))])
    page = make_evidence_page(Reply("Ahab"), "Who?", [])
    for name, text in (("chat.md", chat), ("page.html", page), ("about.md", f"Files: {chat}")):
        (tree / name).write_text(text, "utf-8")
    found = sources.find_readable_files(str(tree))
    read = {Path(path).name for path in found.files}
    assert "about.md" in read
    assert not {"chat.md", "page.html"} & read
    own = map(os.path.basename, found.left_out["written by esa"])
    assert sorted(own) == ["chat.md", "page.html"]
    named = str(tree / "chat.md")
    assert find_files([named]).paths == (named,), "named by the user"


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


ENTRY = """@article{{{key},
  title = {{{{{{BERT}}}}: Pre-training \\& {name}}},
  booktitle = {{Not this}},
  abstract = {{A
  title = of two lines}},
  file = {{{file}}}
}}

"""


def store(home: Path, name: str, data: bytes) -> Document:
    path = home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return read_document(str(path))


@pytest.mark.parametrize(
    "file",
    [
        "/home/ann/Zotero/storage/ABCD2345/Paper.pdf",
        "Full Text:storage/ABCD2345/Paper.pdf:application/pdf",
        r"C\:\\Zotero\\storage\\ABCD2345\\Paper.pdf;D\:\\storage\\ZZZZ2345\\b.html",
    ],
)
def test_an_export_gives_the_title(tmp_path: Path, file: str) -> None:
    entries = [("other", "/storage/ABCD2346/Paper.pdf"), ("devlin", file)]
    text = "".join(ENTRY.format(key=key, name=key.title(), file=one) for key, one in entries)
    (tmp_path / "library.bib").write_text(text, "utf-8")
    document = store(tmp_path, "storage/ABCD2345/Paper.pdf", make.pdf(["One", "Two"]))
    for number, word in enumerate(("One", "Two"), 1):
        place = document.place(document.text.index(word))
        assert place.title == "BERT: Pre-training & Devlin (@devlin)"
        assert place.link == f"zotero://open-pdf/library/items/ABCD2345?page={number}"
    page = store(tmp_path, "storage/ABCD2345/Page.html", b"<p>x</p>").place(0)
    assert page.link == "zotero://select/library/items/ABCD2345"
    (tmp_path / "library.bib").unlink()
    assert store(tmp_path, "storage/ABCD2345/Paper.pdf", make.pdf(["One"])).place(0).title is None


@pytest.mark.parametrize("folder", ["storage/20240101", "storage/abcd2345", "store/ABCD2345", "."])
def test_other_folders_are_no_folders_of_zotero(tmp_path: Path, folder: str) -> None:
    text = ENTRY.format(key="a", name="B", file=f"{folder}/a.txt")
    (tmp_path / "library.bib").write_text(text, "utf-8")
    assert store(tmp_path, f"{folder}/a.txt", b"words").marks == ()


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("Attention Is All You Need", "Attention Is All You Need"),
        ("Microsoft Word - final draft", None), ("my paper v2.docx", None), ("untitled", None),
        ("Untitled document", None), ("", None),
    ],
)  # fmt: skip
def test_a_pdf_has_the_title_of_its_metadata(
    tmp_path: Path, title: str, expected: str | None
) -> None:
    data = make.pdf(["One"], title=title)
    place = store(tmp_path, "1706.03762.pdf", data).place(0)
    assert (place.title, place.link) == (expected, None)
