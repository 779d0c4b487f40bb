"""Processes killed at random moments, two at once, and disks that fill up: nothing is lost.

A kill counts where it left something unfinished: until there were so many, it goes on.
"""

from __future__ import annotations

import errno
import itertools
import multiprocessing
import os
import random
import shutil
import signal
import stat
import time
from functools import partial
from pathlib import Path

import pytest
from forked import child, dying, ended, killed, taken
from properties import seeds
from test_library import (
    LAYOUT,
    WITH,
    WITH_STATES,
    assert_holds,
    contents,
    files,
    finish,
    ingest,
    part_of,
    read,
    text_of,
    used_at,
)

from esa_cli.errors import ResourceError
from esa_cli.storage.library import Layout, Library
from esa_cli.storage.library.stored_cache import KVCacheWriter, StoredKVCache

pytestmark = pytest.mark.skipif(os.name == "nt", reason="no fork, no SIGKILL")
IDS = [*range(70)]
KILLS = 30
TRIES = 15
"""For each kill that counts so many at most: where they all come too early or too late, that is a
mistake of the test."""


@pytest.mark.process
@pytest.mark.parametrize("seed", seeds(1, first=1))
@pytest.mark.parametrize("layout", [LAYOUT, WITH_STATES], ids=["rows", "states"])
def test_an_ingest_killed_at_random_moments_goes_on_to_the_same_bytes(
    tmp_path: Path, layout: Layout, seed: int
) -> None:
    draw = random.Random(seed)
    whole = Library(tmp_path / "whole")
    needs = taken(lambda: ingest(whole, IDS, layout))
    wanted = contents(whole)
    library, tries, cut, resumed = Library(tmp_path / "killed"), 0, 0, 0
    while cut < KILLS or resumed < KILLS // 4:
        tries += 1
        assert tries < TRIES * KILLS, "the kills came too early or too late to mean anything"
        was_at_it = killed(partial(ingest, library, IDS, layout), draw.uniform(0, needs))
        needs *= 1.1 if was_at_it else 0.8  # as busy as the machine is now
        cut += was_at_it and bool(files(library)) and not library.entries()
        for entry in library.entries():
            assert library.verify(entry) == []
            assert_holds(StoredKVCache(library.open_document(entry)).layers, IDS)
        key = library.compute_key(WITH, text_of(IDS))
        with library.open_writer(KVCacheWriter, key, WITH, IDS, layout) as writer:
            if isinstance(writer, KVCacheWriter):
                resumed += writer.stored_token_count > 0
                if draw.random() < 0.5:
                    continue
                read(writer, IDS)
                finish(writer, IDS)
        assert library.verify(library.entries()[0]) == []
        assert {name: data for name, data in contents(library).items() if name in wanted} == wanted
        library.prune()
        assert contents(library) == wanted
        library.remove(library.entries()[0])
        assert files(library) == set()


@pytest.mark.process
def test_pruning_killed_at_each_step_harms_nothing(tmp_path: Path) -> None:
    made = Library(tmp_path / "made")
    for start in (0, 1000, 2000):
        entry = ingest(made, [*range(start, start + 40)])
        used_at(made, entry, 5000.0 + start)
    grown = ingest(made, [*range(60)])
    part_of(made, [*range(3000, 3070)], 50)
    copy = tmp_path / "copy"

    def reingest_hint() -> Library:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(made.root, copy, copy_function=shutil.copy2)
        return Library(copy)

    most = grown.nbytes + 10_000
    library = Library(copy)
    reingest_hint().prune(most)
    left = contents(library)
    assert [entry.key for entry in library.entries()] == [grown.key]
    states = []
    for number in itertools.count(1):
        library = reingest_hint()
        died = ended(child(dying(partial(library.prune, most), number), wait=True)) != 0
        states.append(contents(library))
        for entry in library.entries():
            assert not entry.damage_reason
            assert library.verify(entry) == []
        library.prune(most)
        assert contents(library) == left
        if not died:
            break
    assert len({tuple(sorted(state)) for state in states}) > 3, "some were half done"


def test_two_processes_that_ingest_the_same_end_with_one_copy(tmp_path: Path) -> None:
    wanted = Library(tmp_path / "wanted")
    ingest(wanted, IDS)
    for i in range(4):
        library = Library(tmp_path / f"both{i}")
        numbers = [child(partial(ingest, library, IDS)) for _ in range(3)]
        assert [ended(number) for number in numbers] == [0, 0, 0]
        assert contents(library) == contents(wanted)
        assert library.verify(library.entries()[0]) == []


def test_one_that_waits_goes_on_when_the_other_is_killed(tmp_path: Path) -> None:
    library = Library(tmp_path)
    reading, done = (multiprocessing.get_context("fork").Event() for _ in range(2))

    def first() -> None:
        key = library.compute_key(WITH, text_of(IDS))
        with library.open_writer(KVCacheWriter, key, WITH, IDS, LAYOUT) as writer:
            read(writer, IDS, stop=50)
            reading.set()
            done.wait(60)

    number = child(first)
    assert reading.wait(60)
    waited: list[int] = []

    def waiting() -> None:
        waited.append(1)
        os.kill(number, signal.SIGKILL)

    with library.open_writer(
        KVCacheWriter, library.compute_key(WITH, text_of(IDS)), WITH, IDS, LAYOUT, on_wait=waiting
    ) as writer:
        assert writer.stored_token_count == 48
        read(writer, IDS)
        entry = finish(writer, IDS)
    assert ended(number) == -signal.SIGKILL
    assert waited == [1]
    assert_holds(StoredKVCache(library.open_document(entry)).layers, IDS)


def test_different_documents_are_ingested_side_by_side_while_others_prune(tmp_path: Path) -> None:
    library = Library(tmp_path)

    def prune_often() -> None:
        for _ in range(15):
            library.prune()
            time.sleep(0.01)

    texts = [[*range(60)], [*range(40)], [*range(40), 7, 8], [*range(90, 130)]]
    numbers = [child(partial(ingest, library, ids)) for ids in texts]
    numbers.append(child(prune_often))
    assert [ended(number) for number in numbers] == [0] * 5
    found = library.entries()
    assert len(found) == 4
    for entry in found:
        assert library.verify(entry) == []
        stored = library.open_document(entry)
        assert_holds(StoredKVCache(stored).layers, stored.token_ids.tolist())
    before = files(library)
    library.prune()
    assert files(library) == before


def full_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets so many files be flushed; then the disk is full."""
    real, left = os.fsync, [count]

    def fsync(file: int) -> None:
        left[0] -= stat.S_ISREG(os.fstat(file).st_mode)
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("layout", [LAYOUT, WITH_STATES], ids=["rows", "states"])
def test_a_full_disk_leaves_what_a_kill_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Layout
) -> None:
    library, wanted, said = Library(tmp_path / "library"), Library(tmp_path / "wanted"), set()
    ingest(wanted, IDS, layout)
    other = ingest(library, IDS[:40], layout)
    before = contents(library)
    for count in range(1000):
        with monkeypatch.context() as patch:
            full_after(count, patch)
            try:
                entry = ingest(library, IDS, layout)
                break
            except ResourceError as error:
                said.add((error.message.rpartition(": ")[2], "esa library prune" in error.hint))
        assert [one.key for one in library.entries()] == [other.key]
        assert library.verify(other) == []
        if count % 2:
            library.prune()
            assert contents(library) == before
    else:
        raise AssertionError("it never ended well")
    assert count > 3
    assert said == {(os.strerror(errno.ENOSPC), True)}
    assert library.verify(entry) == []
    assert contents(wanted).items() <= contents(library).items()


@pytest.mark.parametrize("before", ["nothing", "the same beginning", "an unfinished ingest"])
def test_an_ingest_that_is_refused_leaves_the_library_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    library = Library(tmp_path)
    if before == "the same beginning":
        ingest(library, IDS[:40])
    elif before == "an unfinished ingest":
        part_of(library, IDS, 40)
    there = contents(library)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda path: shutil._ntuple_diskusage(9, 9, 0))
        with pytest.raises(ResourceError, match="the disk has"):
            ingest(library, IDS)
    assert contents(library) == there


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no names of open files")
def test_files_are_flushed_before_they_get_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And their folders after; the manifest is last when it comes and first when it goes."""
    library, calls = Library(tmp_path), list[tuple[str, str]]()
    replace, unlink = os.replace, Path.unlink

    def renamed(part: Path, path: Path) -> None:
        assert calls[-1] == ("fsync", str(part))
        calls.append(("rename", str(path)))
        replace(part, path)

    def removed(path: Path, missing_ok: bool = False) -> None:
        calls.append(("unlink", str(path)))
        unlink(path, missing_ok)

    monkeypatch.setattr(
        os, "fsync", lambda file: calls.append(("fsync", os.readlink(f"/proc/self/fd/{file}")))
    )
    monkeypatch.setattr(os, "replace", renamed)
    entry = ingest(library, IDS)
    names = [path for what, path in calls if what == "rename"]
    assert names[0].endswith(".claim")
    assert names[-1] == str(tmp_path / "documents" / f"{entry.key}.doc")
    assert len(names) == 10
    for (what, path), after in itertools.pairwise(calls):
        if what == "rename":
            assert after == ("fsync", str(Path(path).parent))
    calls.clear()
    monkeypatch.setattr(Path, "unlink", removed)
    library.remove(entry)
    mine = [call for call in calls if "catalogue" not in call[1]]
    assert mine[:2] == [("unlink", names[-1]), ("fsync", str(tmp_path / "documents"))]
    folders = {path for what, path in mine if what == "fsync"}
    assert folders == {str(tmp_path / name) for name in ("documents", "segments", "fits")}
