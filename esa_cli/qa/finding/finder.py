"""The finder encodes the tokens of documents and questions for late interaction.

The reduced key of a document token is a low-rank projection of its hidden state after a middle
layer of the model, as in Equation 6. Question tokens have another projection, as in Equation 5, and
weights. `benchmarks/training/train_finder.py` trains the projections and a LoRA adapter of the
model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from safetensors import safe_open
from torch import Tensor, nn

from esa_cli.errors import ModelError
from esa_cli.models.files.checkpoint_files import reading
from esa_cli.models.text_passes.lora_adapter import LoraAdapter
from esa_cli.models.text_passes.small_decoder import FusedForward, can_be_fused
from esa_cli.models.text_passes.text_forward import grouped, hidden_states, of_size_one, padded
from esa_cli.qa.finding.late_interaction import CONTEXT_TOKENS, SEGMENT_TOKENS, index_layout
from esa_cli.qa.presets.adapter_files import MAPS, finder_folder
from esa_cli.qa.presets.preset import AnswerSettings, Preset
from esa_cli.storage.library import Layout

PROMPT = "Question: {question}\nThe text that answers:"
WEIGHT_SCALE = 8.0
"""Divisor of the logits of question token weights, so that training changes them slowly."""
MAP_NAMES = {"query_map", "key_map", "query_weight", "query_bias", "scale"}
HINT = "use --set answer.finder=null"


class Finder(Protocol):
    """Encodes documents and questions, independently of the model that writes the answer."""

    @property
    def layout(self) -> Layout:
        """The layout of a stored token index."""

    @property
    def digest(self) -> str:
        """A SHA-256 digest of everything that determines the reduced keys of a document."""

    def encode(self, ids: Sequence[int], first: int, last: int) -> Tensor:
        """Returns the reduced keys (last - first, R) of document tokens, as float32 on the CPU."""

    def questions(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Returns R-dimensional reduced queries (B, M, R) of unit length for the M tokens of B
        questions, and token weights (B, M) that sum to 1."""


class TokenEncoder:
    """A finder that runs the first layers of a model with an adapter, and projects their output.

    Args:
        maps: `query_map` and `key_map` (H, R), `query_weight` (H,), `query_bias` (1,), and `scale`
            (1,), the logarithm of the factor of scores in training.
        layers: the number of layers that run. prompt: the template for a question.
        fixed: whether model and adapter are no longer trained, so that fused weights are cached.

    Raises ModelError: the projections are of another model.
    """

    def __init__(
        self, model: Any, tokenizer: Any, adapter: LoraAdapter, maps: Mapping[str, Tensor],
        layers: int, prompt: str = PROMPT, *, fixed: bool = False,
    ) -> None:  # fmt: skip
        self.model, self.tokenizer, self.adapter = model, tokenizer, adapter
        self.maps, self.layers, self.prompt = dict(maps), layers, prompt
        self._fixed = fixed
        self._fused_layers: FusedForward | None = None
        size, depth = model.config.hidden_size, len(model.base_model.layers)
        if self.maps["key_map"].shape[0] != size or not 0 < layers <= depth:
            raise ModelError(
                f"the finder needs a model of hidden size {size} with at least {layers} layers; "
                f"this model has {depth} layers",
                f"use the finder that was trained for this model, or {HINT.removeprefix('use ')}",
            )

    @classmethod
    def load(cls, folder: Path, model: Any, tokenizer: Any, *, fixed: bool = False) -> TokenEncoder:
        """Loads an encoder from a folder. Raises ModelError: it is damaged or of another model."""
        with reading(f"the finder {folder}", HINT):
            with safe_open(folder / MAPS, "pt") as file:
                maps = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118
                facts = json.loads(file.metadata()["finder"])
            layers, prompt = int(facts["layers"]), str(facts["prompt"])
            if not set(maps) >= MAP_NAMES or not all(one.isfinite().all() for one in maps.values()):
                raise ValueError(
                    f"{MAPS} must have finite numbers for {', '.join(sorted(MAP_NAMES))}"
                )
        adapter, weight = LoraAdapter.load(folder, model), next(model.parameters())
        adapter.to(weight)
        maps = {name: one.to(weight.device) for name, one in maps.items()}
        return cls(model, tokenizer, adapter, maps, layers, prompt, fixed=fixed)

    @property
    def dim(self) -> int:
        """The dimension R of a reduced key."""
        return self.maps["key_map"].shape[1]

    @property
    def layout(self) -> Layout:
        return index_layout(self.dim)

    @property
    def digest(self) -> str:
        digest = hashlib.sha256(f"{self.layers} {self.adapter.scale}".encode())
        tensors = {"key_map": self.maps["key_map"]}
        for name, (a, b) in sorted(self.adapter.matrices.items()):
            tensors |= {f"{name}.A": a, f"{name}.B": b}
        for name, tensor in tensors.items():
            digest.update(f"{name} {tuple(tensor.shape)}".encode())
            plain = tensor.detach().to("cpu", torch.bfloat16).contiguous()
            digest.update(plain.view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def questions(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Encodes questions as in `Finder.questions`; padding has weight 0. Keeps gradients."""
        sequences = [
            self._encode_question(self.prompt.replace("{question}", text)) for text in texts
        ]
        fused = self._fused_weights() if self._fixed and not torch.is_grad_enabled() else None
        states, lengths = self._hidden_states(sequences, fused)
        logits = states @ self.maps["query_weight"] / WEIGHT_SCALE + self.maps["query_bias"]
        at = torch.arange(states.shape[1], device=states.device)[None]
        # The first two tokens are the prompt's own, before the question.
        within = (at >= 2) & (at < lengths[:, None])
        weights = nn.functional.softplus(logits) * within
        return self._project_states(states, "query_map"), weights / weights.sum(1, keepdim=True)

    def tokens(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        """Returns reduced keys (B, T, R) of B token sequences, zero-padded. Keeps gradients."""
        return self._project_states(self._hidden_states(sequences)[0], "key_map")

    @torch.inference_mode()
    def encode(self, ids: Sequence[int], first: int, last: int) -> Tensor:
        """Encodes tokens as in `Finder.encode`, each segment with `CONTEXT_TOKENS` tokens of
        context."""
        assert first % SEGMENT_TOKENS == 0, "first must be the beginning of a segment"
        pieces, fused = list[Tensor](), self._fused_weights()
        for group in grouped(range(first, last, SEGMENT_TOKENS)):
            begins = [max(0, at - CONTEXT_TOKENS) for at in group]
            ends = [min(last, at + SEGMENT_TOKENS) for at in group]
            segments = [ids[a:b] for a, b in zip(begins, ends, strict=True)]
            states, _ = self._hidden_states(segments, fused)
            keys = self._project_states(states, "key_map")
            rows = zip(keys, group, begins, ends, strict=True)
            pieces += [row[at - a : b - a].cpu() for row, at, a, b in rows]
        return torch.cat(pieces) if pieces else torch.zeros(0, self.dim)

    def _encode_question(self, text: str) -> list[int]:
        out = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)
        return list(out["input_ids"])

    def _project_states(self, states: Tensor, name: str) -> Tensor:
        return nn.functional.normalize(states @ self.maps[name], dim=-1)

    def _fused_weights(self) -> FusedForward | None:
        """Returns the fused weights of layers and adapter; None if the model cannot be fused."""
        if self._fused_layers is not None or not can_be_fused(self.model):
            return self._fused_layers
        fused = FusedForward(self.model, self.layers, self.adapter)
        self._fused_layers = fused if self._fixed else None
        return fused

    def _hidden_states(
        self, sequences: Sequence[Sequence[int]], fused: FusedForward | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns zero-padded hidden states (B, T, H) of B token sequences, and lengths (B,)."""
        lengths = torch.tensor([len(ids) for ids in sequences], device=self.model.device)
        width = int(lengths.max())
        order = sorted(range(len(sequences)), key=lambda n: len(sequences[n]))
        rows: dict[int, Tensor] = {}
        with nullcontext() if fused else self.adapter.active():
            for group in grouped(order):
                ids = padded([sequences[n] for n in group])
                if fused:
                    states = of_size_one(fused.states(ids)[0])
                else:
                    states = hidden_states(self.model, ids, self.layers)
                for n, row in zip(group, states, strict=True):
                    size = len(sequences[n])
                    rows[n] = nn.functional.pad(row[:size], (0, 0, 0, width - size))
        return torch.stack([rows[n] for n in range(len(sequences))]), lengths


class FinderSizes(NamedTuple):
    """The number of model layers that a finder runs, and the dimension R of its reduced keys."""

    layers: int
    dim: int

    @property
    def layout(self) -> Layout:
        """The layout of a stored token index."""
        return index_layout(self.dim)


def load_finder(settings: AnswerSettings, model: Any, tokenizer: Any) -> TokenEncoder | None:
    """Loads the preset's finder, or returns None if there is no finder. Raises PresetError,
    ModelError."""
    if settings.source != "text" or settings.finder is None:
        return None
    return TokenEncoder.load(finder_folder(settings.finder), model, tokenizer, fixed=True)


def index_sizes(preset: Preset) -> FinderSizes | None:
    """Reads the sizes of the preset's finder; None if there is no finder. Raises PresetError,
    ModelError."""
    settings = preset.answer
    if settings.needs_rows or settings.finder is None:
        return None
    path = finder_folder(settings.finder) / MAPS
    with reading(f"the finder {path.parent}", HINT), safe_open(path, "pt") as file:
        facts = json.loads(file.metadata()["finder"])
        return FinderSizes(int(facts["layers"]), int(file.get_slice("key_map").get_shape()[1]))
