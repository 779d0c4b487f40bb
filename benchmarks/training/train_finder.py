"""Trains a finder of the passages that answer questions.

    python benchmarks/training/texts.py texts/
    python benchmarks/training/train_finder.py benchmarks/training/pairs texts/ --out finder/

`esa ask --set answer.finder=finder/` then uses it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from finder_run import FinderRun, StartFinder
from finder_trainer import FinderTrainingSettings
from training_display import load_model, parser, read_texts, run

SIZES = ("layers", "first", "rank", "dim")


def _make(given: argparse.Namespace) -> FinderRun:
    texts, held_out = read_texts(given)
    sizes = {name: getattr(given, name) for name in SIZES if getattr(given, name) is not None}
    settings = FinderTrainingSettings(
        minutes=given.minutes, steps=given.steps, lr=given.lr, batch=given.batch, seed=given.seed,
        **sizes,
    )  # fmt: skip
    _, loaded = load_model(given)
    start = None
    if given.start is not None:
        start = StartFinder.load(given.start, loaded.model, loaded.tokenizer)
        settings = start.sizes(settings)
    return FinderRun(loaded, texts, held_out, given.out, settings, given.every, start)


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parser(__doc__.splitlines()[0], minutes=45.0, lr=5e-4, batch=40)
    arguments.add_argument("--steps", type=int, help="in place of --minutes")
    arguments.add_argument("--layers", type=int, help="of the model that run")
    arguments.add_argument("--first", type=int, help="of them that the adapter does not change")
    arguments.add_argument("--dim", type=int, help="numbers of a token's reduced key")
    given = arguments.parse_args(argv)
    if given.start is not None and any(getattr(given, name) for name in SIZES):
        arguments.error("--start has its own sizes: leave out --layers, --first, --rank and --dim")
    run(lambda: _make(given), given)


if __name__ == "__main__":
    main()
