"""Arguments that the two trainings share, and what they print while they run."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from question_pairs import TrainingText, read_training_texts, split_texts
from training_checkpoint import FILE
from training_run import TrainingRun

from esa_cli.errors import EsaError
from esa_cli.models import load
from esa_cli.models.loading.load import LoadedModel
from esa_cli.qa.presets.preset import Preset, load_preset
from esa_cli.system.machine import format_duration

LINE_S = 30.0
"""Seconds between lines of progress."""


def parser(description: str, minutes: float, lr: float, batch: int) -> argparse.ArgumentParser:
    """The arguments of both trainings, with the defaults of one."""
    out = argparse.ArgumentParser(description=description)
    out.add_argument("pairs", type=Path, help="the folder of questions: NAME.jsonl")
    out.add_argument("texts", type=Path, help="the folder of their texts: NAME.*")
    out.add_argument("--out", type=Path, required=True, help="the folder of the result")
    out.add_argument("--minutes", type=float, default=minutes, help="of training")
    out.add_argument("--lr", type=float, default=lr, help="the highest learning rate")
    out.add_argument("--batch", type=int, default=batch)
    out.add_argument("--rank", type=int, help="of a new adapter")
    out.add_argument("--held-out", action="append", default=[], metavar="NAME",
                     help="score by this text, do not train on it; repeatable")  # fmt: skip
    out.add_argument("--every", type=float, metavar="MINUTES",
                     help="score before the training and this often")  # fmt: skip
    out.add_argument("--start", type=Path, metavar="FOLDER", help="train this one further")
    out.add_argument("--seed", type=int, default=1)
    out.add_argument("--resume", action="store_true", help="continue from the checkpoint in --out")
    out.add_argument("--preset", default="default")
    out.add_argument("--model", help="another model than the preset's")
    out.add_argument("--device", default="auto")
    out.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"))
    return out


def read_texts(given: argparse.Namespace) -> tuple[list[TrainingText], list[TrainingText]]:
    """Texts to train on and texts held out. Raises DocumentError, UsageError."""
    return split_texts(read_training_texts(given.pairs, given.texts), given.held_out)


def load_model(given: argparse.Namespace) -> tuple[Preset, LoadedModel]:
    """The preset and its model, or the one that is named. Raises EsaError."""
    preset = load_preset(given.preset)
    ref = given.model or preset.model
    return preset, load(ref, device=given.device, dtype=given.dtype)


class TrainingDisplay:
    """The `TrainingEvents` of a script: lines on standard error."""

    def __init__(self) -> None:
        self._line = 0.0
        self._begun: tuple[float, float] | None = None

    def _now_and_then(self, text: str) -> None:
        if time.monotonic() - self._line >= LINE_S:
            self._line = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    def preparing(self, done: int, total: int) -> None:
        self._now_and_then(f"preparing {done:,} of {total:,}")

    def step(self, trainer: Any) -> None:
        state, share = trainer.state, trainer.settings.share(trainer.state)
        now = time.monotonic()
        if self._begun is None:
            self._begun = now, share
            return
        begun, before = self._begun
        left = format_duration((1 - share) * (now - begun) / max(share - before, 1e-9))
        losses = ", ".join(f"{name} {loss:.2f}" for name, loss in sorted(state.losses.items()))
        self._now_and_then(f"{share:.0%}, {state.steps:,} steps, {left} left; losses {losses}")

    def scoring(self, text: str, done: int, total: int) -> None:
        self._now_and_then(f"scoring {text}: {done:,} of {total:,}")

    def scored(self, scores: Sequence[Any], count: int, /) -> None:
        for score in scores:
            print(f"after {count:,}: {score}", file=sys.stderr, flush=True)


def run(make: Callable[[], TrainingRun], given: argparse.Namespace) -> None:
    """Trains, and prints what `training.json` has. Ends with an error's exit code."""
    try:
        record = make().run(TrainingDisplay(), given.resume)
    except EsaError as error:
        print(f"{error.message}\n{error.hint}", file=sys.stderr)
        raise SystemExit(error.exit_code) from error
    except KeyboardInterrupt:
        if (given.out / FILE).exists():
            print(f"{given.out} has a checkpoint; --resume continues", file=sys.stderr)
        raise SystemExit(130) from None
    print(json.dumps(record, indent=1))
