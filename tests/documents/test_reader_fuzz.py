"""Mutated documents of every format: a text, or an error of one line; no hang, no death."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
from limited_child import LimitedChild
from reader_checks import refused
from reader_fuzz import Mutant, limited_reader, request
from reader_samples import SAMPLES
from sample_files import zipped

EACH = 20
pytestmark = pytest.mark.skipif(os.name == "nt", reason="no fork")


@pytest.fixture(scope="module")
def reader() -> Iterator[LimitedChild]:
    child = limited_reader()
    yield child
    child.end()


@pytest.mark.parametrize("name", SAMPLES)
def test_mutants_are_read_or_refused(reader: LimitedChild, name: str) -> None:
    found = {}
    for number in range(EACH):
        mutant = Mutant(1, name, number)
        found[mutant] = reader.do(request(mutant.data(), name)).said
    wrong = {mutant: said for mutant, said in found.items() if said not in ("text", "refused")}
    assert wrong == {}


def test_some_damage_is_harmless(reader: LimitedChild) -> None:
    """A fuzzer whose mutants are all refused at the first byte tests nothing."""
    for name in SAMPLES:
        mutants = [Mutant(1, name, number) for number in range(3 * EACH)]
        found = (reader.do(request(one.data(), name)).said for one in mutants)
        assert "text" in found, name


def test_a_reason_of_several_lines_is_said_in_one(reader: LimitedChild) -> None:
    broken = zipped({"META-INF/container.xml": "<a>\0</a>", "mimetype": "application/epub+zip"})
    error = refused(broken, "a.epub")
    assert "allowed range , line 1" in error.message
    assert reader.do(request(broken, "a.epub")).said == "refused"


def test_mutants_are_the_same_in_every_run() -> None:
    assert [Mutant(7, name, 3).data() for name in SAMPLES] == [
        Mutant(7, name, 3).data() for name in SAMPLES
    ]
    assert len({Mutant(7, "a.docx", number).data() for number in range(20)}) > 18


@pytest.mark.parametrize(
    ("does", "said"), [(lambda: time.sleep(9), "hang"), (lambda: os._exit(3), "died: 3")]
)
def test_a_hang_and_a_death_are_told_and_the_next_request_is_done(does: object, said: str) -> None:
    def work(sent: bytes) -> str:
        return str(does()) if sent == b"bad" else "good"  # type: ignore[operator]

    child = LimitedChild(work, 1 << 30, 0.3)
    assert [child.do(b"x").said, child.do(b"bad").said[: len(said)], child.do(b"y").said] == [
        "good", said, "good",
    ]  # fmt: skip
    child.end()


@pytest.mark.skipif(os.name == "nt" or os.uname().sysname != "Linux", reason="no limit there")
def test_memory_is_limited() -> None:
    child = LimitedChild(lambda sent: str(len(b"x" * (1 << 30))), 1 << 28, 9)
    assert child.do(b"x").said == "died: 1"
    child.end()
