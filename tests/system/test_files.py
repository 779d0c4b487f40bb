"""What a disk says, in words; and files that are whole or not there."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from safetensors import SafetensorError

from esa_cli.errors import DocumentError, EsaError, ResourceError
from esa_cli.system import files as disk

PLACE = Path("some") / "file"


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), ResourceError, "No space left"),
        (OSError(errno.EDQUOT, "quota"), ResourceError, os.strerror(errno.EDQUOT)),
        (OSError(errno.EFBIG, "large"), ResourceError, "too large"),
        (PermissionError(errno.EACCES, "Permission denied"), DocumentError, "Permission denied"),
        (OSError("no number"), DocumentError, "no number"),
        (SafetensorError("Error: I/O error (os error 28)"), ResourceError, "No space left"),
        (SafetensorError("Error: I/O error (os error 13)"), DocumentError, "Permission denied"),
        (SafetensorError("something else"), DocumentError, "something else"),
    ],
)
def test_what_hinders_writing_is_said(error: Exception, kind: type[EsaError], said: str) -> None:
    with pytest.raises(kind, match=said) as caught, disk.writing(
        PLACE, "room", "other", also=SafetensorError
    ):  # fmt: skip
        raise error
    assert str(PLACE) in caught.value.message
    assert caught.value.hint == ("room" if kind is ResourceError else "other")


def test_other_errors_pass_through() -> None:
    with pytest.raises(ValueError, match="a bug"), disk.writing(PLACE, "", ""):
        raise ValueError("a bug")


def test_a_failed_write_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "talk.md"
    disk.write_whole(path, "before é")
    assert path.read_text("utf-8") == "before é"

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        disk.write_whole(path, "after")
    assert path.read_text("utf-8") == "before é"
    assert [one.name for one in tmp_path.iterdir()] == ["talk.md"]
