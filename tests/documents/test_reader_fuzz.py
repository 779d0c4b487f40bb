"""Mutated documents of every format: a text, or an error of one line."""

from __future__ import annotations

import random
import sys

import pytest
from properties import EXAMPLES
from reader_fuzz import Mutant, read_here, verdict
from reader_samples import SAMPLES

EACH = EXAMPLES or 60


@pytest.mark.parametrize("name", SAMPLES)
def test_mutants_are_read_or_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rapidocr", None)  # which takes a second a page
    seed = random.randrange(1 << 30) if EXAMPLES else 1
    mutants = [Mutant(seed, name, number) for number in range(EACH)]
    verdicts = {mutant: verdict(mutant.data(), name, read_here) for mutant in mutants}
    assert {m: v for m, v in verdicts.items() if v not in ("text", "refused")} == {}
    assert "text" in verdicts.values(), "mutants that are all refused test nothing"
