"""What a shell is offered when Tab is pressed: quick, harmless, and the names that are there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from test_library import ingest

from esa_cli.__main__ import main
from esa_cli.storage.library import Library, document_files
from esa_cli.storage.library.disk import LibraryPaths


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.setenv("ESA_LIBRARY", str(tmp_path / "library"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return Library()


def keep(library: Library, name: str, start: int) -> str:
    """A stored document of that name; its id."""
    entry = ingest(library, [*range(start, start + 20)])
    named = replace(entry, provenance={**entry.provenance, "name": name})
    document_files.write_manifest(LibraryPaths(library.root), named)
    return entry.id


def offered(line: str, shell: str = "bash") -> list[str]:
    """What a shell is offered at the end of a line, by the program itself."""
    words = line.split(" ")
    given = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    if shell != "bash":
        given = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("_ESA_COMPLETE", f"complete_{shell}")
        for name, value in given.items():
            patch.setenv(name, value)
        out = Path(os.environ["ESA_LIBRARY"]).parent / "out"
        with out.open("w", encoding="utf-8") as file:
            patch.setattr(sys, "stdout", file)
            with pytest.raises(SystemExit):
                main([])
    return out.read_text("utf-8").strip("\n").splitlines()


def test_names_and_ids_of_stored_documents(library: Library) -> None:
    moby, notes = keep(library, "moby-dick.txt", 0), keep(library, "notes.md", 50)
    for command in ("show", "rm", "verify", "copy library memory://x"):
        assert offered(f"esa library {command} ") == ["moby-dick.txt", "notes.md"]
    assert offered("esa library show mo") == ["moby-dick.txt"]
    assert offered(f"esa library rm notes.md {moby[:5]}") == [moby]
    assert offered("esa library show zzz") == []
    for shell in ("fish", "zsh"):
        assert notes not in "".join(offered("esa library show ", shell))
        assert "notes.md" in "".join(offered("esa library show no", shell))


def test_names_that_a_shell_would_interpret(library: Library) -> None:
    hostile = [
        "$(reboot).txt",
        "`reboot`",
        "a\nb",
        "a;b",
        'a"b',
        "a'b",
        "a\\",
        "-rf",
        "(x)",
        "*",
        "a b",
    ]
    ids = {keep(library, name, 40 * i) for i, name in enumerate(hostile)}
    assert set(offered("esa library show ")) == ids
    assert "reboot" not in "".join(offered("esa library show ", "zsh"))


def test_presets_and_methods(library: Library, tmp_path: Path) -> None:
    own = tmp_path / "config" / "esa" / "presets"
    own.mkdir(parents=True)
    (own / "zebra.yaml").touch()
    (own / "zebra$(x).yaml").touch()
    assert offered("esa ask --preset zeb") == ["zebra"]
    assert "default" in offered("esa presets show def")
    assert "qwen3-4b" in offered("esa ask --model qwen3")
    assert "ask" in offered("esa a")


@pytest.mark.process
def test_bash_itself_without_torch(library: Library, tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if not bash:
        pytest.skip("no bash")
    keep(library, "my-book.txt", 0)
    keep(library, "$(touch hit).txt", 50)
    program = tmp_path / "bin" / "esa"
    program.parent.mkdir()
    heavy = (
        "{'torch', 'numpy', 'transformers', 'rich', 'yaml', 'snowballstemmer'} & set(sys.modules)"
    )
    program.write_text(
        f"#!{sys.executable}\nimport atexit, sys\nfrom esa_cli.__main__ import main\n"
        f"atexit.register(lambda: {heavy} and print('heavy', {heavy}))\nmain()\n",
        "utf-8",
    )
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    script = subprocess.run(
        [program], capture_output=True, text=True, timeout=60,
        env={**environment, "_ESA_COMPLETE": "source_bash"},
    ).stdout  # fmt: skip
    tab = "COMP_WORDS=(esa library show my); COMP_CWORD=3; _esa_completion esa; "
    done = subprocess.run(
        [bash, "--norc", "-c", f"{script}\n{tab}printf '%s\\n' \"${{COMPREPLY[@]}}\""],
        capture_output=True, text=True, timeout=60, cwd=tmp_path, env=environment,
    )  # fmt: skip
    assert done.stdout == "my-book.txt\n", done.stderr
    assert not (tmp_path / "hit").exists()
