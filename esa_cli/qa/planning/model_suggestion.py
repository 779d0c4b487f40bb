"""Chooses the known model that suits a machine's memory as the writer of answers."""

from __future__ import annotations

from esa_cli.qa.presets.preset_files import load_known_models

READERS = {"qwen3-30b-a3b-2507": 3.3, "phi4-14b": 14.7, "qwen3-4b-2507": 4.02, "qwen2.5-1.5b": 1.54}
"""The known models that are suggested, largest first, with the billions of weights that compute
each token. They have a permissive licence, need no sign-in, and answer without thoughts before."""
CPU_WEIGHTS = 5.0
"""The most weights, in billions, that a CPU is asked to compute for each token."""
BESIDE = 2 << 30
"""The bytes of the finder, of libraries, and of the keys and values of a prompt."""


def estimate_reader_bytes(name: str, weight_bytes: int) -> int:
    """Returns the bytes of memory of a known model that reads, and of what is beside it."""
    return load_known_models()[name].count_weight_bytes(weight_bytes) + BESIDE


def suggest_reader(memory_bytes: int, weight_bytes: int, on_gpu: bool) -> str | None:
    """Returns the name of the largest model of `READERS` for a device with `memory_bytes` free, on
    which a weight takes `weight_bytes` bytes; None if even the smallest does not fit."""
    for name, active in READERS.items():
        fits = estimate_reader_bytes(name, weight_bytes) <= memory_bytes
        if fits and (on_gpu or active <= CPU_WEIGHTS):
            return name
    return None
