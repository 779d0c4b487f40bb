"""Averages the weights of two readers, of which one went on from the other.

    python benchmarks/training/average_readers.py BEFORE/ AFTER/ --out reader/

A reader that goes on to learn from new kinds of texts forgets some of the old ones; the mean of its
matrices and those of the reader before keeps both (NOTES.md, "Papers").
"""

from __future__ import annotations

import argparse
from pathlib import Path

from safetensors.torch import load_file, save_file
from train_reader import HEAD

from esa_cli.models.text_passes.text_forward import WEIGHTS


def average_files(before: Path, after: Path, out: Path, share: float) -> None:
    """Writes (1 - share) times the tensors of a file, plus `share` times those of another."""
    tensors, others = load_file(before), load_file(after)
    mean = {
        name: ((1 - share) * one.float() + share * others[name].float()).to(one.dtype).contiguous()
        for name, one in tensors.items()
    }
    save_file(mean, out, metadata={"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder with a copy of BEFORE")
    parser.add_argument("--share", type=float, default=0.5, help="the share of AFTER")
    given = parser.parse_args()
    for name in (WEIGHTS, HEAD):
        average_files(given.before / name, given.after / name, given.out / name, given.share)


if __name__ == "__main__":
    main()
