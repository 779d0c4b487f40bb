"""What a disk says, in words; and files that are whole or not there."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from safetensors import SafetensorError

from esa_cli.errors import DocumentError, EsaError, ResourceError
from esa_cli.system.files import convert_writing_errors, replace_atomically, write_text_atomically

PLACE = Path("some") / "file"


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), ResourceError, "No space left"),
        (OSError(errno.EDQUOT, "quota"), ResourceError, "quota"),
        (PermissionError(errno.EACCES, "Permission denied"), DocumentError, "Permission denied"),
        (SafetensorError("Error: I/O error (os error 28)"), ResourceError, "No space left"),
        (SafetensorError("something else"), DocumentError, "something else"),
    ],
)
def test_what_hinders_writing_is_said(error: Exception, kind: type[EsaError], said: str) -> None:
    with pytest.raises(kind, match=said) as caught, convert_writing_errors(
        PLACE, "room", "other", also_caught=SafetensorError
    ):  # fmt: skip
        raise error
    assert str(PLACE) in caught.value.message
    assert caught.value.hint == ("room" if kind is ResourceError else "other")


def test_a_failed_write_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "talk.md"
    write_text_atomically(path, "before é")
    assert path.read_text("utf-8") == "before é"

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_text_atomically(path, "after")
    assert path.read_text("utf-8") == "before é"
    assert [one.name for one in tmp_path.iterdir()] == ["talk.md"]


@pytest.mark.parametrize("is_folder", [False, True])
def test_what_is_not_finished_disappears_and_the_rest_appears_whole(
    tmp_path: Path, is_folder: bool
) -> None:
    def fill(part: Path, error: type[BaseException] | None = None) -> None:
        if is_folder:
            part.mkdir()
        (part / "file" if is_folder else part).write_text("half")
        if error:
            raise error

    with pytest.raises(KeyboardInterrupt), replace_atomically(tmp_path / "place") as part:
        fill(part, KeyboardInterrupt)
    assert not list(tmp_path.iterdir())
    with replace_atomically(tmp_path / "place") as part:
        fill(part)
    names = [path.name for path in tmp_path.rglob("*")]
    assert names == ["place", "file"] if is_folder else ["place"]
