"""Folders and patterns: which files they mean, and that what is left out is said."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import sample_files as make

from esa_cli.apps.cli.commands.chat_command import format_chat_as_markdown
from esa_cli.documents import sources
from esa_cli.documents.document import gather_documents
from esa_cli.documents.sources import find_files
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
    files: dict[str, bytes] = {
        "docs/b.md": b"b",
        "docs/a.txt": b"a",
        "docs/deep/er/c.py": b"c",
        "docs/deep/wide.txt": "wide".encode("utf-16"),
        "docs/paper.pdf": make.pdf(["paper"]),
        "docs/empty.txt": b"",
        "docs/logo.png": b"\x89PNG\r\n\x1a\n\0",
        "docs/data.bin": b"ab\0c" * 9,
        "docs/.secret": b"x",
        "docs/.git/config": b"x",
        "docs/build/out.txt": b"x",
        "docs/x.log": b"x",
        "docs/deep/keep.log": b"keep",
        "docs/.gitignore": b"build/\n*.log\n",
        "docs/deep/.gitignore": b"!keep.log\n",
        "other/d.txt": b"d",
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
    assert find_files([str(tree / "chat.md")]).paths == (str(tree / "chat.md"),), (
        "named by the user"
    )
