"""Standard streams that are closed, full, or whose reader has gone: one exit code, no traceback.

What concerns the process itself runs in another; the rest runs `main` here on a pipe nobody reads.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from command import environment

from esa_cli.__main__ import main

FULL = Path("/dev/full")

needs_full = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full on this system")
needs_shell = pytest.mark.skipif(os.name == "nt", reason="no POSIX shell")


pytestmark = pytest.mark.usefixtures("surroundings", "note")


@pytest.fixture
def unread() -> Iterator[IO[str]]:
    """A pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stream:
        yield stream


def shell(command: str) -> subprocess.CompletedProcess[str]:
    """Runs a shell command in which $ESA is the program."""
    program = environment(ESA=f"{sys.executable} -m esa_cli")
    return subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, env=program, timeout=60
    )


@pytest.mark.process
@needs_shell
def test_a_reader_who_goes_away_is_no_error() -> None:
    result = shell("($ESA presets show tiny-random; echo $? >code) | true")
    assert Path("code").read_text() == "141\n"
    assert result.stderr == ""


def test_an_answer_that_nobody_reads(
    unread: IO[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout", unread)
    assert main(["ask", "note.md", "What?", "-p", "tiny-random", "--quiet"]) == 141
    assert capsys.readouterr().err == ""
    print("what comes after goes nowhere", file=unread, flush=True)


def test_progress_that_nobody_reads(
    unread: IO[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr", unread)
    assert main(["ask", "note.md", "What?", "-p", "tiny-random"]) == 141
    assert capsys.readouterr().out == ""


@needs_full
@pytest.mark.process
@needs_shell
@pytest.mark.parametrize("command", ["presets list", "--help", "models list --json"])
def test_a_full_disk_under_the_output(command: str) -> None:
    result = shell(f"$ESA {command} >/dev/full")
    assert result.returncode == 6
    first, *others = result.stderr.splitlines()
    assert len(others) == 1 + ("--json" in command)
    assert first.startswith("esa: the output cannot be written: No space left")


@pytest.mark.process
@needs_shell
@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("presets show tiny-random >&-", 0, ""),
        ("presets show tiny-random >&- 2>&-", 0, ""),
        ("presets show tiny-random <&- >&- 2>&-", 0, ""),
        ("presets show nosuch 2>&-", 4, ""),
        ("ask - What? -p tiny-random <&-", 3, "standard input is empty"),
        ("models rm nowhere/none <&-", 5, "is not in"),
    ],
)
def test_closed_streams(command: str, code: int, words: str) -> None:
    result = shell(f"$ESA {command}")
    assert result.returncode == code
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert "a bug" not in result.stderr
