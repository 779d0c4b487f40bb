"""Chooses the known model that suits a machine's memory as the writer of answers."""

from __future__ import annotations

from dataclasses import dataclass

from esa_cli.qa.presets.preset_files import KnownModelFacts, load_known_models

READERS = {"qwen3-30b-a3b-2507": 3.3, "phi4-14b": 14.7, "qwen3-4b-2507": 4.02, "qwen2.5-1.5b": 1.54}
"""The known models that are suggested, largest first, with the billions of weights that compute
each token. They have a permissive licence, need no sign-in, and answer without thoughts before."""
CPU_WEIGHTS = 5.0
"""The most weights, in billions, that a CPU is asked to compute for each token."""
BESIDE = 2 << 30
"""The bytes of the finder, of libraries, and of the keys and values of a prompt."""


@dataclass(frozen=True)
class SuggestedModel:
    """A known model that fits into memory.

    Args:
        fetch_bytes: of its files in 16 bits. memory_bytes: of its weights and of what is beside."""

    name: str
    facts: KnownModelFacts
    fetch_bytes: int
    memory_bytes: int


def suggest_reader(memory_bytes: int, weight_bytes: int, on_gpu: bool) -> SuggestedModel | None:
    """Returns the largest model of `READERS` for a device with free memory of `memory_bytes`, on
    which a weight takes `weight_bytes` bytes; None if even the smallest does not fit."""
    for name, active in READERS.items():
        facts = load_known_models()[name]
        needed = facts.count_weight_bytes(weight_bytes) + BESIDE
        if needed <= memory_bytes and (on_gpu or active <= CPU_WEIGHTS):
            return SuggestedModel(name, facts, facts.count_weight_bytes(2), needed)
    return None
