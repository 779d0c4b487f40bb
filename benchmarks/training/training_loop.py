"""The steps of a training: AdamW over a budget of steps or minutes, with checkpoints.

The learning rate rises over the first steps, and falls as a cosine over the budget. A batch depends
on its number and on the seed alone, so that a training that goes on makes the steps that it would
have made. With a budget of minutes the result also depends on the machine's speed.
"""

from __future__ import annotations

import json
import math
import pickle
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import torch
from small_llama import SmallLlama
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from esa_cli.errors import DocumentError, UsageError
from esa_cli.system.files import convert_writing_errors, replace_atomically, write_text_atomically
from esa_cli.system.machine import format_duration

CHECKPOINT, RECORD = "checkpoint.pt", "training.json"
CHECKPOINT_S, LINE_S = 180.0, 30.0
"""Seconds between checkpoints, and between lines of progress."""
BETAS = (0.9, 0.98)
CLIP = 1.0
"""The largest norm of the gradient of the LoRA matrices."""
FINAL = 0.05
"""The learning rate at the end of the budget, as a share of the highest."""
MOST_EMPTY = 100
"""The most groups without a batch, one after the other."""
MEMORY = 0.98
"""The weight of earlier steps in the moving averages of the losses."""

Batch = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """What every training has: a budget, and how it learns.

    Args:
        steps: the budget; None: `minutes` of steps. lr: the highest learning rate of the adapter.
        head_lr: that of the head, as a multiple. warm_up: steps over which the rates rise.
        seed: of the first weights and of the batches.
    """

    steps: int | None = None
    minutes: float
    lr: float
    head_lr: float
    warm_up: int
    seed: int = 1


class BatchGroups(Dataset[list[Batch]], ABC):
    """Groups of batches; group n depends on n and on the seed alone."""

    @abstractmethod
    def __getitem__(self, number: int) -> list[Batch]:
        """Returns the batches of a group."""

    def iterate(self, group: int, skip: int, workers: int) -> Iterator[tuple[int, int, Batch]]:
        """Yields all batches after the first `skip` of a group, each with the group and the number
        in it of the next batch. Raises UsageError: many groups have no batch."""
        pin, empty = torch.cuda.is_available(), 0
        groups = DataLoader(
            self, batch_size=None, sampler=count(group), num_workers=workers, pin_memory=pin,
            worker_init_fn=ignore_ctrl_c,
        )  # fmt: skip
        for number, batches in zip(count(group), groups, strict=False):
            empty = 0 if batches else empty + 1
            if empty > MOST_EMPTY:
                raise UsageError(
                    "batches must have questions, got none", "train on longer texts, or more"
                )
            for at in range(skip, len(batches)):
                yield number, at + 1, batches[at]
            skip = 0


class TrainedModel(SmallLlama, ABC):
    """A model whose adapter and head are trained by the loss of batches."""

    losses: ClassVar[tuple[str, ...]]
    """The names of the losses that the record has."""

    @abstractmethod
    def compute_loss(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the loss of a batch, and for its record the sums and the counts of `losses`."""


class Training:
    """The training of a model in a folder, which has a checkpoint until the training ends.

    Args:
        inputs: what else a training that goes on must have in common.
        workers: processes that make batches; 0: this one does.
    """

    def __init__(
        self, model: TrainedModel, batches: BatchGroups, settings: TrainingSettings, folder: Path,
        inputs: Mapping[str, Any], workers: int = 0,
    ) -> None:  # fmt: skip
        self.model, self.batches, self.settings, self.folder = model, batches, settings, folder
        self.workers = workers
        facts = {**asdict(settings), **inputs}
        if settings.steps is not None:
            facts["minutes"] = None
        self.facts = json.loads(json.dumps(facts))
        self.adapter = [*model.a.parameters(), *model.b.parameters()]
        groups = [{"params": self.adapter}, {"params": [*model.head.parameters()]}]
        fast = model.device.type == "cuda"
        self.optimiser = torch.optim.AdamW(groups, betas=BETAS, weight_decay=0.0, fused=fast)
        self.steps, self.seconds = 0, 0.0
        self._next = (0, 0)
        self._sums = torch.zeros(2, len(model.losses), device=model.device)

    @property
    def share(self) -> float:
        """How much of the budget is spent, 0 to 1."""
        steps, minutes = self.settings.steps, self.settings.minutes
        if steps is not None:
            return min(1.0, self.steps / max(1, steps))
        return min(1.0, self.seconds / (60 * minutes)) if minutes else 1.0

    def compute_rate(self) -> float:
        """Returns the learning rate of the next step, as a share of the highest."""
        rise = min(1.0, (self.steps + 1) / max(1, self.settings.warm_up))
        return rise * (FINAL + (1 - FINAL) * 0.5 * (1 + math.cos(math.pi * self.share)))

    def compute_losses(self) -> dict[str, float]:
        """Returns the moving averages of the losses. Raises UsageError: one is no number."""
        sums, counts = self._sums.tolist()
        rows = zip(self.model.losses, sums, counts, strict=True)
        losses = {name: one / number for name, one, number in rows if number}
        if not all(map(math.isfinite, losses.values())):
            raise UsageError(f"losses must be finite, got {losses}", "try a lower --lr")
        return losses

    def run(self, resume: bool = False) -> None:
        """Trains until the budget is spent.

        Raises:
            KeyboardInterrupt: the checkpoint has all steps so far.
            UsageError: the folder has, or lacks, a checkpoint, or one of other settings.
        """
        check_folder(self.folder, resume)
        if resume:
            self.load_checkpoint()
        start, share = time.monotonic(), self.share
        last = last_save = last_line = start
        shapes = set[Any]()
        with catch_ctrl_c() as signals, torch.enable_grad():
            for group, following, batch in self.batches.iterate(*self._next, self.workers):
                if self.share >= 1 or signals:
                    break
                self._make_step(batch)
                self.steps, self._next = self.steps + 1, (group, following)
                now = time.monotonic()
                shape = tuple(one.shape for name, one in sorted(batch.items()) if "ids" in name)
                if not self.model.compiled or shape in shapes:
                    self.seconds += now - last
                shapes.add(shape)  # The first step of a shape compiles the layers.
                if now - last_line >= LINE_S:
                    last_line = now
                    self._print_progress((self.share - share) / (now - start))
                if now - last_save >= CHECKPOINT_S:
                    last_save = now
                    self.save_checkpoint()
                last = time.monotonic()
        self.save_checkpoint()
        if self.share < 1:
            raise KeyboardInterrupt

    def finish(self) -> dict[str, Any]:
        """Writes `training.json`, removes the checkpoint, and returns what the record has."""
        device = self.model.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        record = {
            **self.facts, "device": name, "torch": torch.__version__,
            "steps": self.steps, "seconds": round(self.seconds, 1),
            "losses": {name: round(loss, 4) for name, loss in self.compute_losses().items()},
        }  # fmt: skip
        with explain_writing_errors(self.folder):
            write_text_atomically(self.folder / RECORD, json.dumps(record, indent=1) + "\n")
            (self.folder / CHECKPOINT).unlink(missing_ok=True)
        return record

    def save_checkpoint(self) -> None:
        """Writes weights, the optimiser's state and the position. Raises EsaError."""
        self.compute_losses()
        state = {
            "facts": self.facts, "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(), "steps": self.steps,
            "seconds": self.seconds, "next": self._next, "sums": self._sums,
        }  # fmt: skip
        path = self.folder / CHECKPOINT
        with explain_writing_errors(path), replace_atomically(path) as part:
            torch.save(state, part)

    def load_checkpoint(self) -> None:
        """Raises UsageError: it is of other settings. DocumentError: it is damaged."""
        path = self.folder / CHECKPOINT
        try:
            state = torch.load(path, map_location=self.model.device, weights_only=True)
            facts: dict[str, Any] = state["facts"]
            for name, now in self.facts.items():
                if facts.get(name) != now:
                    raise UsageError(
                        f"{name} must be that of the checkpoint, {facts.get(name)!r}, got {now!r}",
                        "resume with the options that it began with, or name another --out",
                    )
            self.model.load_state_dict(state["model"])
            self.optimiser.load_state_dict(state["optimiser"])
            self.steps, self.seconds = state["steps"], state["seconds"]
            self._next, self._sums = state["next"], state["sums"]
        except (OSError, pickle.UnpicklingError, KeyError, TypeError, RuntimeError) as error:
            raise DocumentError(
                f"the checkpoint {path} cannot be read: {error}", "delete it, and begin again"
            ) from error

    def _make_step(self, batch: Batch) -> None:
        rate = self.settings.lr * self.compute_rate()
        for group, factor in zip(
            self.optimiser.param_groups, (1.0, self.settings.head_lr), strict=True
        ):
            group["lr"] = rate * factor
        device = self.model.device
        batch = {name: one.to(device, non_blocking=True) for name, one in batch.items()}
        loss, sums, counts = self.model.compute_loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.adapter, CLIP)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        latest = torch.stack((sums.detach(), counts))
        self._sums = MEMORY * self._sums + (1 - MEMORY) * latest

    def _print_progress(self, rate: float) -> None:
        left = format_duration((1 - self.share) / max(rate, 1e-9))
        losses = ", ".join(f"{name} {loss:.3f}" for name, loss in self.compute_losses().items())
        pace = f"{self.steps:,} steps, {1000 * self.seconds / max(1, self.steps):,.0f} ms each"
        line = f"{self.share:.0%}, {pace}, {left} left; losses: {losses}"
        print(line, file=sys.stderr, flush=True)


def check_folder(folder: Path, resume: bool) -> None:
    """Raises UsageError: the folder has a training, or has none to resume."""
    if (folder / RECORD).exists():
        message = f"--out must have no training yet, got {folder}"
        raise UsageError(message, "name another folder")
    checkpoint = (folder / CHECKPOINT).is_file()
    if checkpoint and not resume:
        message = f"--out must have no checkpoint yet, got {folder}"
        raise UsageError(message, "add --resume, or name another folder")
    if resume and not checkpoint:
        message = f"--out must have a checkpoint to resume, got {folder}"
        raise UsageError(message, "leave out --resume")


def explain_writing_errors(path: Path) -> AbstractContextManager[None]:
    """Returns a context that gives errors of writing their hints."""
    return convert_writing_errors(
        path, "free some space; --resume goes on", "name another --out", also_caught=RuntimeError
    )


@contextmanager
def catch_ctrl_c() -> Iterator[list[int]]:
    """Yields a list that has an item after Ctrl-C; a second Ctrl-C ends the process at once."""
    signals: list[int] = []

    def note(number: int, frame: object) -> None:
        signals.append(number)
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield signals
    finally:
        signal.signal(signal.SIGINT, before)


def ignore_ctrl_c(worker: int) -> None:
    """Leaves Ctrl-C to the process of the training."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
