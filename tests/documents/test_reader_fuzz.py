"""Mutated documents of every format: a text, or an error of one line."""

from __future__ import annotations

import pytest
from reader_fuzz import Mutant, read_here, verdict
from reader_samples import SAMPLES

EACH = 60


@pytest.mark.parametrize("name", SAMPLES)
def test_mutants_are_read_or_refused(name: str) -> None:
    mutants = [Mutant(1, name, number) for number in range(EACH)]
    verdicts = {mutant: verdict(mutant.data(), name, read_here) for mutant in mutants}
    assert {m: v for m, v in verdicts.items() if v not in ("text", "refused")} == {}
    assert "text" in verdicts.values(), "mutants that are all refused test nothing"
    assert len({mutant.data() for mutant in mutants}) > EACH // 2
