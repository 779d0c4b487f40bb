"""A cross-encoder: a model that reads a question and a passage together, and gives one score.

Code that comes with a model is never run, and pickled weights are never loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from esa_cli.errors import ModelError, get_first_line
from esa_cli.models.files.quiet_transformers import quiet_transformers
from esa_cli.system.progress import Progress

HINT = "choose a cross-encoder in transformers' format with safetensors weights and one score"
BATCH = 32
"""The number of passages that are scored together, sorted by length."""
TOKENS = 512
"""The maximum number of tokens of question and passage; a longer passage loses its end."""


class CrossEncoder:
    """A cross-encoder of transformers. Raises ModelError: it cannot be loaded, or has not exactly
    one score."""

    def __init__(self, folder: Path, device: Any = "cpu") -> None:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        options: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
        with quiet_transformers():
            try:
                self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, **options)
                model, loading = AutoModelForSequenceClassification.from_pretrained(
                    folder, use_safetensors=True, output_loading_info=True, dtype=torch.float32,
                    **options,
                )  # fmt: skip
            except Exception as error:  # of many kinds, from the files and the package
                wrong = f"the cross-encoder {folder} cannot be loaded: {get_first_line(error)}"
                raise ModelError(wrong, HINT) from error
        if loading["missing_keys"]:  # transformers would make them at random
            lacks = ", ".join(sorted(loading["missing_keys"])[:3])
            raise ModelError(f"the cross-encoder {folder} has no weights {lacks}", HINT)
        if (count := model.config.num_labels) != 1:
            wrong = f"the cross-encoder {folder} has {count} scores in place of one"
            raise ModelError(wrong, HINT)
        self.model = model.to(device).eval()
        longest = min(self.tokenizer.model_max_length, TOKENS)
        self._limits = {"truncation": "only_second", "max_length": longest}

    @torch.inference_mode()
    def score_passages(
        self, question: str, passages: Sequence[str], progress: Progress | None = None
    ) -> torch.Tensor:
        """Returns the scores (passages,) of a question's passages; a higher one fits better.
        `progress` is called with (passages scored, passages); its exceptions pass through."""
        scores = torch.zeros(len(passages))
        order = sorted(range(len(passages)), key=lambda at: len(passages[at]))
        for first in range(0, len(order), BATCH):
            if progress is not None:
                progress(first, len(order))
            batch = order[first : first + BATCH]
            texts = [passages[at] for at in batch]
            tokens = self.tokenizer(
                [question] * len(texts), texts, padding=True, return_tensors="pt", **self._limits
            )
            logits = self.model(**tokens.to(self.model.device)).logits[:, 0]
            scores[batch] = logits.float().cpu()
        return scores
