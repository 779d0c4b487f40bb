"""Trains a reader, which points at the answer to a question in a passage, or sees that none is.

    python benchmarks/training/texts.py texts/
    python benchmarks/training/train_reader.py benchmarks/training/pairs texts/ --out reader/ \\
        --finder finder/

All tokens of question and passage see each other. The loss is the mean cross-entropy of the
answer's first and last token, the cross-entropy of whether the passage answers, and half of that of
the right passage among those of a question.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from adapter_files import new_adapter, save_adapter
from reader_batches import ReaderBatches, ReaderSettings
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from training_data import READER_PROMPT, Integers, TrainingData
from training_loop import CHECKPOINT, Batch, TrainedModel, explain_writing_errors
from training_program import TrainingJob, digest_files, make_parser, run_program
from wrong_windows import find_nearest_windows, find_wrong_windows

from esa_cli.models.text_passes.text_forward import WEIGHTS, LoraAdapter
from esa_cli.qa.finding.finder import TokenEncoder
from esa_cli.qa.presets.preset_files import MAPS
from esa_cli.system.files import replace_atomically

HEAD = "head.safetensors"
WRONG_WINDOWS = "wrong_windows.npy"
"""A file beside the checkpoint, so that a training that goes on need not find them again."""
RANK_WEIGHT = 0.5
NEVER = -1e4
"""The score of a token outside the passage, and of a row that is none."""


class ReaderModel(TrainedModel):
    """A reader in training; its head are the vectors `start`, `end` and `has` (H,), of whose
    products with the states the last has a `bias` (1,). `fit_requests.py` adds `request`."""

    losses: ClassVar = ("span", "binary", "rank")

    def compute_scores(
        self, ids: Tensor, lengths: Tensor, passage: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the scores (B, T) of tokens as the first and as the last one of the answer, and
        the log-odds (B,) that the passage answers.

        Args:
            ids: (B, T). lengths: (B,). passage: (B, 2), tokens [first, last).
        """
        states, head = self.compute_states(self.merge_weights(), ids, lengths), self.head
        places = torch.arange(ids.shape[1], device=self.device)
        outside = (places < passage[:, :1]) | (places >= passage[:, 1:])
        start = (states @ head["start"]).masked_fill(outside, NEVER)
        end = (states @ head["end"]).masked_fill(outside, NEVER)
        ends = states[torch.arange(len(ids), device=self.device), (lengths - 1).clamp(min=0)]
        return start, end, ends @ head["has"] + head["bias"]

    def compute_loss(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        start, end, odds = self.compute_scores(batch["ids"], batch["lengths"], batch["passage"])
        has, rows = batch["has"], (batch["lengths"] > 0).float()
        first, last = batch["answer"].T
        spans = cross_entropy(start, first, reduction="none") / 2
        spans = (spans + cross_entropy(end, last, reduction="none") / 2) * has
        binary = binary_cross_entropy_with_logits(odds, has.float(), reduction="none") * rows
        groups = batch["groups"]
        rivals = odds[groups.clamp(min=0)].masked_fill(groups < 0, NEVER)
        real = (groups[:, 0] >= 0).float()
        ranks = (rivals.logsumexp(1) - rivals[:, 0]) * real
        sums = torch.stack((spans.sum(), binary.sum(), ranks.sum()))
        counts = torch.stack((has.sum(), rows.sum(), real.sum())).float()
        span, answered, rank = sums / counts.clamp(min=1)
        return span + answered + RANK_WEIGHT * rank, sums, counts


def train_reader(data: TrainingData, settings: ReaderSettings, job: TrainingJob) -> dict[str, Any]:
    """Trains a reader, writes it, and returns its record. Raises as `Training.run`."""
    loaded = job.loaded
    model, hidden = loaded.model, loaded.model.config.hidden_size
    if job.start is None:
        head = {name: torch.zeros(hidden) for name in ("start", "end", "has")}
        head["bias"] = torch.zeros(1)
        adapter = new_adapter(model, settings.rank, 2 * settings.rank, settings.seed)
    else:
        head, adapter = load_file(job.start / HEAD), LoraAdapter.load(job.start, model)
    layers = len(model.base_model.layers)
    reader = ReaderModel(model, layers, adapter, head, job.compile_layers)
    wrong_windows = load_wrong_windows(data, job)
    batches = ReaderBatches(data, loaded.tokenizer, settings, wrong_windows)
    training = job.make_training(
        reader, batches, settings, prompt=READER_PROMPT,
        finder=digest_files(job.finder, (WEIGHTS, MAPS)),
        start=digest_files(job.start, (WEIGHTS, HEAD)), nearest=job.nearest,
    )  # fmt: skip
    training.run(job.resume)
    with explain_writing_errors(job.folder):
        save_adapter(reader.make_adapter(), job.folder, loaded.ref)
        tensors = {name: one.detach().cpu().contiguous() for name, one in reader.head.items()}
        with replace_atomically(job.folder / HEAD) as path:
            save_file(tensors, path)
        (job.folder / WRONG_WINDOWS).unlink(missing_ok=True)
    return training.finish()


def load_wrong_windows(data: TrainingData, job: TrainingJob) -> Integers:
    """Returns the windows next to the passages if the job's `nearest` is true, else those that its
    finder, or BM25 without one, ranks high although they do not answer, from the job's folder if
    the training goes on."""
    path = job.folder / WRONG_WINDOWS
    if job.resume and path.is_file() and (job.folder / CHECKPOINT).is_file():
        numbers: Integers = np.load(path, allow_pickle=False)
        return numbers
    if job.nearest:
        return find_nearest_windows(data)
    encoder, loaded = None, job.loaded
    if job.finder is not None:
        encoder = TokenEncoder.load(job.finder, loaded.model, loaded.tokenizer)
    numbers = find_wrong_windows(job.texts, data, encoder)
    with explain_writing_errors(path), replace_atomically(path) as part, part.open("wb") as out:
        np.save(out, numbers)
    return numbers


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, ReaderSettings)
    parser.add_argument(
        "--finder", type=Path, metavar="FOLDER",
        help="learn from windows that it ranks too high; without it, from those of BM25",
    )  # fmt: skip
    parser.add_argument(
        "--nearest", action="store_true", help="learn from windows next to the passages instead"
    )
    parser.add_argument(
        "--start", type=Path, metavar="FOLDER", help="go on from a trained reader of this rank"
    )
    run_program(parser.parse_args(argv), ReaderSettings, train_reader)


if __name__ == "__main__":
    main()
