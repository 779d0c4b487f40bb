"""The command line of the two trainings: options for all their settings, and what they report."""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from question_pairs import TrainingText, draw_pairs, read_training_texts
from training_data import TrainingData, load_training_data
from training_loop import (
    CHECKPOINT,
    BatchGroups,
    TrainedModel,
    Training,
    TrainingSettings,
    check_folder,
    explain_writing_errors,
)

from esa_cli.errors import EsaError
from esa_cli.models import load
from esa_cli.models.loading.load import LoadedModel
from esa_cli.qa.presets.preset import load_preset
from esa_cli.version import __version__

CACHE = "training_data.npz"
WORKERS = 12
"""The most processes that make batches."""

Settings = TypeVar("Settings", bound=TrainingSettings)


@dataclass(frozen=True)
class TrainingJob:
    """Where a training runs, what its texts are, and where its results go.

    Args:
        workers: processes that make batches for a GPU. compile_layers: whether torch compiles them.
        finder: the folder of a finder, whose mistakes a reader learns from.
        start: the folder of a reader or finder, which the training goes on from.
        others: how probable it was that a pair neither natural nor remembered was taken.
        nearest: whether a reader learns from the windows next to the passages.
    """

    loaded: LoadedModel
    texts: list[TrainingText]
    folder: Path
    resume: bool = False
    workers: int = 0
    compile_layers: bool = False
    finder: Path | None = None
    start: Path | None = None
    others: float = 1.0
    nearest: bool = False

    def make_training(
        self, model: TrainedModel, batches: BatchGroups, settings: TrainingSettings,
        **inputs: Any,
    ) -> Training:  # fmt: skip
        """Returns the training of a model; `inputs` are recorded and must not change."""
        facts = {
            "esa": __version__, "model": self.loaded.ref, **inputs,
            "dtype": str(self.loaded.dtype).removeprefix("torch."), "others": self.others,
            "texts": {text.name: text.digest for text in self.texts},
        }  # fmt: skip
        return Training(model, batches, settings, self.folder, facts, self.workers)


def make_parser(
    description: str | None, settings: type[TrainingSettings]
) -> argparse.ArgumentParser:
    """Returns the options of a training, one of each of its settings."""
    settings_help = "\n\n".join(str(inspect.getdoc(one)) for one in (TrainingSettings, settings))
    parser = argparse.ArgumentParser(
        description=description, epilog=settings_help,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("pairs", type=Path, help="the folder of questions: NAME.jsonl")
    parser.add_argument("texts", type=Path, help="the folder of their texts: NAME.*")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the result")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    parser.add_argument(
        "--others", type=float, default=1.0, metavar="SHARE",
        help="how probable it is that a pair neither `natural` nor `remembered` is taken",
    )  # fmt: skip
    parser.add_argument(
        "--compile", action="store_true",
        help="compile the layers on a processor, too: a quarter faster, and needs a C++ compiler",
    )  # fmt: skip
    parser.add_argument("--cache", type=Path, help=f"keeps tokens; default TEXTS/{CACHE}")
    parser.add_argument("--model", default=load_preset("default").model)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"))
    for field in fields(settings):
        kind = float if isinstance(field.default, float) else int
        name = f"--{field.name.replace('_', '-')}"
        parser.add_argument(name, type=kind, default=field.default, help="default %(default)s")
    return parser


def run_program(
    options: argparse.Namespace,
    settings: type[Settings],
    train: Callable[[TrainingData, Settings, TrainingJob], Mapping[str, Any]],
) -> None:
    """Trains, and prints what `training.json` has. Ends with an error's exit code."""
    try:
        print(json.dumps(_run(options, settings, train), indent=1))
    except EsaError as error:
        print(f"{error.message}\n{error.hint}", file=sys.stderr)
        raise SystemExit(error.exit_code) from error
    except KeyboardInterrupt:
        if (options.out / CHECKPOINT).exists():
            print(f"{options.out} has a checkpoint; --resume goes on", file=sys.stderr)
        raise SystemExit(130) from None


def _run(
    options: argparse.Namespace,
    kind: type[Settings],
    train: Callable[[TrainingData, Settings, TrainingJob], Mapping[str, Any]],
) -> Mapping[str, Any]:
    settings = kind(**{field.name: getattr(options, field.name) for field in fields(kind)})
    check_folder(options.out, options.resume)
    with explain_writing_errors(options.out):
        options.out.mkdir(parents=True, exist_ok=True)
    texts = read_training_texts(options.pairs, options.texts)
    if options.others < 1:
        texts = draw_pairs(texts, options.others, settings.seed)
    loaded = load(options.model, device=options.device, dtype=options.dtype)
    cache = options.cache or options.texts / CACHE
    data = load_training_data(texts, loaded.tokenizer, loaded.ref, cache)
    fast = loaded.device.type == "cuda"
    if fast:
        torch.set_float32_matmul_precision("high")
    workers = min(WORKERS, max(1, (os.cpu_count() or 1) - 2)) if fast else 0
    finder, start = (getattr(options, name, None) for name in ("finder", "start"))
    job = TrainingJob(
        loaded, texts, options.out, options.resume, workers, fast or options.compile, finder,
        start, options.others, getattr(options, "nearest", False),
    )  # fmt: skip
    return train(data, settings, job)


def digest_files(folder: Path | None, names: Sequence[str]) -> str | None:
    """Returns the SHA-256 of files of a folder, or None without a folder."""
    if folder is None:
        return None
    content = b"".join((folder / name).read_bytes() for name in names)
    return hashlib.sha256(content).hexdigest()
