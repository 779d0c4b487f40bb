"""A finder encodes the tokens of documents and questions for late interaction (as in ColBERT).

A document token's reduced key is a low-rank projection of the token's hidden state after a middle
layer (Equation 6 of the ESA paper); a question token has a reduced query from another projection
(Equation 5) and a weight."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from safetensors import safe_open
from torch import Tensor, nn

from esa_cli.documents.document import Document
from esa_cli.errors import ModelError
from esa_cli.models.files.checkpoint_files import convert_read_errors
from esa_cli.models.text_passes.text_forward import (
    FusedForward,
    LoraAdapter,
    can_fuse_model,
    iterate_group_states,
    iterate_groups,
)
from esa_cli.models.tokenization.tokenizer import tokenise_text
from esa_cli.qa.presets.preset_files import MAPS
from esa_cli.storage.library import SEGMENT, Layout
from esa_cli.storage.library.document_files import decode_records, encode_rows

SEGMENT_TOKENS = 512
"""The number of document tokens that are encoded together."""
CONTEXT_TOKENS = 64
"""The number of tokens before a segment that are encoded together with the segment as context."""
PIECE = 4 * SEGMENT_TOKENS
"""The number of tokens encoded in one call, of which a segment of the library is a multiple."""
TILE = 4096
"""The number of tokens whose keys are decoded at once: 2 MB with R = 128 fit the CPU's cache."""


@dataclass(frozen=True, eq=False)
class TokenisedDocument:
    """A document with its token ids and the characters [start, end) of each token."""

    document: Document
    ids: Sequence[int]
    offsets: Tensor

    @classmethod
    def tokenise(cls, document: Document, tokenizer: Any) -> TokenisedDocument:
        """Tokenises a document. Raises DocumentError: see `tokenise_text`."""
        ids, offsets = tokenise_text(tokenizer, document.text)
        return cls(document, ids, torch.from_numpy(offsets))


class Finder(Protocol):
    """Computes reduced keys of a document's tokens and reduced queries of question tokens. The
    finder decides what a token is: a piece of a word, or a whole window of the document."""

    uses_preset_model: bool
    """Whether the keys depend on the preset's model, and not only on the `digest`."""
    piece: int
    """The number of tokens encoded in one call, of which a segment of the library is a multiple."""

    layout: Layout
    """The layout of a token index's files in the library."""

    @property
    def digest(self) -> str:
        """The SHA-256 digest of all weights that determine the reduced keys of documents."""

    def tokenise(self, document: Document) -> TokenisedDocument:
        """Divides a document into tokens, whose ids determine the tokens' keys."""

    def encode_tokens(self, text: TokenisedDocument, first: int, last: int) -> Tensor:
        """Returns the reduced keys (last - first, R) of the document tokens [first, last), as
        float32 on the CPU; `first` is a multiple of `piece`."""

    def encode_questions(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Returns the reduced queries (B, M, R) of the M tokens of B questions, scaled to unit
        length, and the tokens' weights (B, M), whose sum is 1; padding has weight 0."""


def make_index_layout(dim: int) -> Layout:
    """Returns the file layout of a token index whose reduced keys have dimension `dim`."""
    if dim < 2 or dim % 2:
        raise ValueError(f"the dimension of a reduced key must be even, got {dim}")
    return Layout(layers=1, heads=1, dim=dim // 2, dtype="float32", kind="int8", segment=SEGMENT)


class ReducedKeys:
    """The reduced keys (N, R) of a document's N tokens, quantised to uint8 (N, row_bytes)."""

    def __init__(self, records: Tensor, layout: Layout) -> None:
        assert records.shape[1] == layout.row_bytes, "records must have the bytes of the layout"
        self.records, self.layout = records, layout

    @classmethod
    def encode(cls, keys: Tensor, layout: Layout) -> ReducedKeys:
        """Quantises the reduced keys (n, R) of n tokens to the number format of the layout."""
        return cls(encode_rows(keys, layout), layout)

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (N, R): the number of tokens and the dimension of a reduced key."""
        return self.records.shape[0], self.layout.width

    @property
    def nbytes(self) -> int:
        return self.records.nbytes

    def decode_keys(self, start: int, stop: int) -> Tensor:
        """Returns the reduced keys (stop - start, R) of the tokens [start, stop) as float32."""
        return decode_records(self.records[start:stop], self.layout)


def compute_window_products(
    queries: Tensor, keys: Tensor | ReducedKeys, first: Tensor, last: Tensor
) -> Tensor:
    """Returns, for W token ranges [first, last) and M queries (M, R), the largest product (W, M) of
    the query with a key (N, R) of the range, as float32; -1 for ranges without tokens."""
    first, last = first.contiguous(), last.contiguous()
    empty = queries.new_full((first.shape[0], queries.shape[0]), -1.0, dtype=torch.float32)
    bounds = torch.unique(torch.cat((first, last)))
    if bounds.numel() < 2 or not keys.shape[0]:
        return empty
    # Windows overlap, so the tokens between two bounds are multiplied once for all windows.
    best = _compute_products_between_bounds(queries.float(), keys, bounds)
    begin, end = torch.searchsorted(bounds, first), torch.searchsorted(bounds, last)
    largest = best[begin.clamp(max=best.shape[0] - 1)]
    for step in range(1, int((end - begin).max())):
        largest = largest.maximum(best[(begin + step).minimum(end - 1).clamp(min=0)])
    return torch.where((last > first)[:, None], largest, empty)


def _compute_products_between_bounds(
    queries: Tensor, keys: Tensor | ReducedKeys, bounds: Tensor
) -> Tensor:
    """Returns largest products (B - 1, M) of M queries with the keys between B ascending tokens."""
    best = queries.new_full((bounds.shape[0] - 1, queries.shape[0]), -torch.inf)
    low, high = int(bounds[0]), int(bounds[-1])
    for start in range(low, high, TILE):
        stop = min(start + TILE, high)
        tile = keys.decode_keys(start, stop) if isinstance(keys, ReducedKeys) else keys[start:stop]
        # The bounds inside this tile, after its first token, divide it.
        from_bound = int(torch.searchsorted(bounds, start, right=True))
        to_bound = int(torch.searchsorted(bounds, stop))
        outer = bounds.new_tensor([start, stop])
        edges = torch.cat((outer[:1], bounds[from_bound:to_bound], outer[1:]))
        largest = torch.segment_reduce(
            tile.float() @ queries.T, "max", lengths=edges.diff(), axis=0
        )
        pieces = best[from_bound - 1 : to_bound]
        torch.maximum(pieces, largest, out=pieces)
    return best


def pool_window_products(products: Tensor, neighbours: int) -> Tensor:
    """Returns maxima (W, M) of products (W, M) over a window and `neighbours` on its two sides."""
    if not products.shape[0]:
        return products
    size, columns = 2 * neighbours + 1, products.T[:, None]
    return nn.functional.max_pool1d(columns, size, 1, neighbours)[:, 0].T


PROMPT = "Question: {question}\nThe text that answers:"
WEIGHT_SCALE = 8.0
"""Divisor of the logits of question token weights, so that training changes them slowly."""
MAP_NAMES = {"query_map", "key_map", "query_weight", "query_bias", "scale"}
HINT = "use --finder words"


class TokenEncoder:
    """A finder that projects hidden states after the first layers of a model with a LoRA adapter.

    Args:
        maps: `query_map` and `key_map` (H, R), `query_weight` (H,), `query_bias` (1,), and `scale`
            (1,), the logarithm of the factor of scores in training.
        layers: the number of first layers that run. prompt: the template for a question.

    Raises ModelError: the projections are of another model."""

    uses_preset_model, piece = True, PIECE

    def __init__(
        self, model: Any, tokenizer: Any, adapter: LoraAdapter, maps: Mapping[str, Tensor],
        layers: int, prompt: str = PROMPT,
    ) -> None:  # fmt: skip
        self.model, self.tokenizer, self.adapter = model, tokenizer, adapter
        self.maps, self.layers, self.prompt = dict(maps), layers, prompt
        self.dim = self.maps["key_map"].shape[1]  # R
        self.layout = make_index_layout(self.dim)
        size, depth = model.config.hidden_size, len(model.base_model.layers)
        if self.maps["key_map"].shape[0] != size or not 0 < layers <= depth:
            raise ModelError(
                f"the finder needs a model of hidden size {size} with at least {layers} layers; "
                f"this model has {depth} layers",
                f"use the finder that was trained for this model, or {HINT.removeprefix('use ')}",
            )

    @classmethod
    def load(cls, folder: Path, model: Any, tokenizer: Any) -> TokenEncoder:
        """Loads projections and adapter from a folder. Raises ModelError: a file is damaged."""
        with convert_read_errors(f"the finder {folder}", HINT):
            with safe_open(folder / MAPS, "pt") as file:
                maps = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118
                facts = json.loads(file.metadata()["finder"])
            layers, prompt = int(facts["layers"]), str(facts["prompt"])
            if not set(maps) >= MAP_NAMES or not all(one.isfinite().all() for one in maps.values()):
                wanted = ", ".join(sorted(MAP_NAMES))
                raise ValueError(f"{MAPS} must have finite numbers for {wanted}")
        adapter, weight = LoraAdapter.load(folder, model), next(model.parameters())
        adapter.match_device_and_dtype(weight)
        maps = {name: one.to(weight.device) for name, one in maps.items()}
        return cls(model, tokenizer, adapter, maps, layers, prompt)

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

    @torch.inference_mode()
    def encode_questions(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        sequences = [self._tokenise_question(text) for text in texts]
        states, lengths = self._compute_hidden_states(sequences)
        logits = states @ self.maps["query_weight"] / WEIGHT_SCALE + self.maps["query_bias"]
        at = torch.arange(states.shape[1], device=states.device)[None]
        # The first two tokens are the prompt's own, before the question.
        within = (at >= 2) & (at < lengths[:, None])
        weights = nn.functional.softplus(logits) * within
        return self._project_states(states, "query_map"), weights / weights.sum(1, keepdim=True)

    def tokenise(self, document: Document) -> TokenisedDocument:
        return TokenisedDocument.tokenise(document, self.tokenizer)

    def encode_tokens(self, text: TokenisedDocument, first: int, last: int) -> Tensor:
        return self.encode_document(text.ids, first, last)

    @torch.inference_mode()
    def encode_document(self, ids: Sequence[int], first: int, last: int) -> Tensor:
        """Returns the reduced keys of tokens, as `encode_tokens`; the model reads each segment
        together with the `CONTEXT_TOKENS` tokens before the segment."""
        assert first % SEGMENT_TOKENS == 0, "first must be the beginning of a segment"
        pieces = list[Tensor]()
        for group in iterate_groups(range(first, last, SEGMENT_TOKENS)):
            begins = [max(0, at - CONTEXT_TOKENS) for at in group]
            ends = [min(last, at + SEGMENT_TOKENS) for at in group]
            segments = [ids[a:b] for a, b in zip(begins, ends, strict=True)]
            keys = self._project_states(self._compute_hidden_states(segments)[0], "key_map")
            rows = zip(keys, group, begins, ends, strict=True)
            pieces += [row[at - a : b - a].cpu() for row, at, a, b in rows]
        return torch.cat(pieces) if pieces else torch.zeros(0, self.dim)

    def _tokenise_question(self, question: str) -> list[int]:
        text = self.prompt.replace("{question}", question)
        out = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)
        return list(out["input_ids"])

    def _project_states(self, states: Tensor, map_name: str) -> Tensor:
        return nn.functional.normalize(states @ self.maps[map_name], dim=-1)

    @cached_property
    def _fused(self) -> FusedForward | None:
        can_fuse = can_fuse_model(self.model)
        return FusedForward(self.model, self.layers, self.adapter) if can_fuse else None

    def _compute_hidden_states(self, sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Returns the zero-padded hidden states (B, T, H) and the lengths (B,) of B sequences."""
        lengths = torch.tensor([len(ids) for ids in sequences], device=self.model.device)
        width, rows = int(lengths.max()), dict[int, Tensor]()
        given = self.model, self.adapter, self._fused, sequences, self.layers
        for group, states in iterate_group_states(*given):
            for n, row in zip(group, states, strict=True):
                size = len(sequences[n])
                rows[n] = nn.functional.pad(row[:size], (0, 0, 0, width - size))
        return torch.stack([rows[n] for n in range(len(sequences))]), lengths


class FinderSizes(NamedTuple):
    """The sizes of a finder, and the name and server of one with a model of its own."""

    layers: int  # of the preset's model, which the finder runs
    dim: int  # R, of reduced keys
    name: str = ""
    weights: int = 0  # bytes
    unit: str = "token"  # what has a key, a token or a window
    server: str = ""  # that gets the documents

    @property
    def layout(self) -> Layout:
        """The layout of a token index's files in the library."""
        return make_index_layout(self.dim + self.dim % 2)

    def make_width_even(self, vectors: Tensor) -> Tensor:
        """Appends a zero to vectors of odd dimension, as the library stores two halves."""
        return nn.functional.pad(vectors, (0, self.dim % 2))
