"""Encodes tokens for finding: reduced keys of a document, reduced queries of a question.

A token's key is a low-rank map (the key map of Eq. (6)) of its hidden state after one of the
model's middle layers; a question's tokens have a map of their own (the query map of Eq. (5)) and
weights. A LoRA adapter on the layers below is trained with the maps by
`benchmarks/training/train_finder.py`, which writes the folders that are loaded here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from esa_cli.errors import ModelError
from esa_cli.models.files.checkpoint_files import reading
from esa_cli.models.text_passes.lora_adapter import LoraAdapter
from esa_cli.models.text_passes.small_decoder import FusedForward, can_be_fused
from esa_cli.models.text_passes.text_forward import grouped, hidden_states, of_size_one, padded
from esa_cli.qa.finding.late_interaction import CONTEXT_TOKENS, SEGMENT_TOKENS, index_layout
from esa_cli.qa.presets.adapter_files import MAPS
from esa_cli.storage.library import Layout

PROMPT = "Question: {question}\nThe text that answers:"
WEIGHT_SCALE = 8.0
"""Divides the logits of the question tokens' weights: they learn slowly."""


class TokenEncoder:
    """A model's first layers with an adapter, and the maps after them: a `Finder`. Raises
    ModelError: the maps are of another model.

    Args:
        model, tokenizer: of transformers; nothing is attached while it encodes. adapter: of layers
            below `layers`. maps: `query_map` and `key_map` (H, R), `query_weight` (H,),
            `query_bias` (1,), and `scale` (1,), the logarithm of the factor of scores in training.
        layers: number of the model's layers that run. prompt: around a question. fixed: neither
            model nor adapter is trained any more, so their fused weights are kept.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        adapter: LoraAdapter,
        maps: Mapping[str, Tensor],
        layers: int,
        prompt: str = PROMPT,
        *,
        fixed: bool = False,
    ) -> None:
        self._fixed = fixed
        self._fused_layers: FusedForward | None = None
        self.model, self.tokenizer, self.adapter = model, tokenizer, adapter
        self.maps, self.layers, self.prompt = dict(maps), layers, prompt
        size, most = model.config.hidden_size, len(model.base_model.layers)
        if self.maps["key_map"].shape[0] != size or not 0 < layers <= most:
            raise ModelError(
                f"the finder must be of a model with {size} numbers a hidden state and at least "
                f"{layers} layers; this model has {most}",
                "use the finder that was trained for this model, or --set answer.finder=null",
            )

    @classmethod
    def load(cls, folder: Path, model: Any, tokenizer: Any, *, fixed: bool = False) -> TokenEncoder:
        """Reads an encoder from its folder. fixed: see the class. Raises ModelError: the folder has
        none, it is damaged, or of another model."""
        with reading(f"the finder {folder}", "use --set answer.finder=null"):
            with safe_open(folder / MAPS, "pt") as file:
                maps = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118
                facts = json.loads(file.metadata()["finder"])
            layers, prompt = int(facts["layers"]), str(facts["prompt"])
            missing = {"query_map", "key_map", "query_weight", "query_bias", "scale"} - set(maps)
            if missing:
                raise ValueError(f"it lacks {', '.join(sorted(missing))}")
            if other := [name for name, one in maps.items() if not one.isfinite().all()]:
                raise ValueError(f"{other[0]} must have finite numbers")
        adapter = LoraAdapter.load(folder, model)
        weight = next(model.parameters())
        adapter.to(weight)
        maps = {name: one.to(weight.device) for name, one in maps.items()}
        return cls(model, tokenizer, adapter, maps, layers, prompt, fixed=fixed)

    @property
    def dim(self) -> int:
        """R, numbers of a reduced key."""
        return self.maps["key_map"].shape[1]

    @property
    def layout(self) -> Layout:
        """Of the index."""
        return index_layout(self.dim)

    @property
    def digest(self) -> str:
        """SHA-256 of everything that shapes the keys of a document."""
        digest = hashlib.sha256(f"{self.layers} {self.adapter.scale}".encode())
        tensors = {"key_map": self.maps["key_map"]}
        for name, (a, b) in sorted(self.adapter.matrices.items()):
            tensors |= {f"{name}.A": a, f"{name}.B": b}
        for name, one in tensors.items():
            digest.update(f"{name} {tuple(one.shape)}".encode())
            plain = one.detach().to("cpu", torch.bfloat16).contiguous()
            digest.update(plain.view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def questions(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Reduced queries (B, M, R) of unit length, and weights (B, M) that sum to 1 a question;
        0 at padding. Gradients pass through."""
        sequences = [self._ids(self.prompt.replace("{question}", text)) for text in texts]
        fused = self._fused() if self._fixed and not torch.is_grad_enabled() else None
        states, lengths = self._states(sequences, fused)
        logits = states @ self.maps["query_weight"] / WEIGHT_SCALE + self.maps["query_bias"]
        at = torch.arange(states.shape[1], device=states.device)[None]
        # The first two tokens are the prompt's own, before the question.
        within = (at >= 2) & (at < lengths[:, None])
        weights = nn.functional.softplus(logits) * within
        return self._reduced(states, "query_map"), weights / weights.sum(1, keepdim=True)

    def tokens(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        """Reduced keys (B, T, R) of unit length of sequences of token ids, each on its own; zeros
        after the shorter ones. Gradients pass through."""
        states, _ = self._states(sequences)
        return self._reduced(states, "key_map")

    @torch.inference_mode()
    def encode(self, ids: Sequence[int], first: int, last: int) -> Tensor:
        """See `Finder.encode`: each segment of `SEGMENT_TOKENS` sees the `CONTEXT_TOKENS` before
        it. `first` must be a segment's beginning."""
        assert first % SEGMENT_TOKENS == 0, "first must be the beginning of a segment"
        pieces: list[Tensor] = []
        fused = self._fused()
        for group in grouped(range(first, last, SEGMENT_TOKENS)):
            begins = [max(0, at - CONTEXT_TOKENS) for at in group]
            ends = [min(last, at + SEGMENT_TOKENS) for at in group]
            states, _ = self._states([ids[a:b] for a, b in zip(begins, ends, strict=True)], fused)
            keys = self._reduced(states, "key_map")
            rows = zip(keys, group, begins, ends, strict=True)
            pieces += [row[at - a : b - a].cpu() for row, at, a, b in rows]
        return torch.cat(pieces) if pieces else torch.zeros(0, self.dim)

    def _ids(self, text: str) -> list[int]:
        found = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)
        return list(found["input_ids"])

    def _reduced(self, states: Tensor, name: str) -> Tensor:
        return nn.functional.normalize(states @ self.maps[name], dim=-1)

    def _fused(self) -> FusedForward | None:
        """The layers' fused weights with the adapter in them; None where there are none."""
        if self._fused_layers is not None or not can_be_fused(self.model):
            return self._fused_layers
        fused = FusedForward(self.model, self.layers, self.adapter)
        self._fused_layers = fused if self._fixed else None
        return fused

    def _states(
        self, sequences: Sequence[Sequence[int]], fused: FusedForward | None = None
    ) -> tuple[Tensor, Tensor]:
        """Hidden states (B, T, H), zeros at padding, and lengths (B,)."""
        lengths = torch.tensor([len(ids) for ids in sequences], device=self.model.device)
        width = int(lengths.max())
        order = sorted(range(len(sequences)), key=lambda n: len(sequences[n]))
        rows: dict[int, Tensor] = {}
        with nullcontext() if fused else self.adapter.active():
            for group in grouped(order):
                ids = padded([sequences[n] for n in group])
                if fused:
                    found = of_size_one(fused.states(ids)[0])
                else:
                    found = hidden_states(self.model, ids, self.layers)
                for n, one in zip(group, found, strict=True):
                    kept = one[: len(sequences[n])]
                    rows[n] = nn.functional.pad(kept, (0, 0, 0, width - kept.shape[0]))
        return torch.stack([rows[n] for n in range(len(sequences))]), lengths
