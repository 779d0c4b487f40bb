"""Trains an adapter with which a model quotes answers from passages.

    python benchmarks/training/texts.py texts/
    python benchmarks/training/train_reader.py benchmarks/training/pairs texts/ --out adapter/

`esa ask --set answer.from=text --set answer.adapter=adapter/` then uses it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from adapter_files import adapter_rank
from ranked_windows import read_ranked_windows
from reader_run import ReaderRun, StartAdapter
from reader_trainer import ReaderTrainingSettings
from training_display import load_model, parser, read_texts, run

from esa_cli.qa.reading.span import PassagePrompt


def _make(given: argparse.Namespace) -> ReaderRun:
    texts, held_out = read_texts(given)
    windows = read_ranked_windows(given.windows, [*texts, *held_out]) if given.windows else {}
    preset, loaded = load_model(given)
    prompt = PassagePrompt(loaded.tokenizer, preset.answer.prompt, preset.answer.unanswered)
    settings = ReaderTrainingSettings(
        minutes=given.minutes, examples=given.examples, lr=given.lr, batch=given.batch,
        seed=given.seed, rank=given.rank or ReaderTrainingSettings.rank,
        longest=min(ReaderTrainingSettings.longest, preset.context),
    )  # fmt: skip
    start = StartAdapter.load(given.start, loaded.model) if given.start else None
    if start is not None:
        settings = replace(settings, rank=adapter_rank(start.adapter))
    return ReaderRun(
        loaded, prompt, texts, held_out, given.out, settings, given.every, windows, start
    )


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parser(__doc__.splitlines()[0], minutes=60.0, lr=6e-4, batch=16)
    arguments.add_argument("--examples", type=int, help="in place of --minutes")
    arguments.add_argument(
        "--windows", type=Path, help="windows that a finder ranks first (rank_windows.py), not BM25"
    )
    given = arguments.parse_args(argv)
    if given.start is not None and given.rank is not None:
        arguments.error("--start has its own rank: leave out --rank")
    run(lambda: _make(given), given)


if __name__ == "__main__":
    main()
