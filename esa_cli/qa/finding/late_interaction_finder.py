"""A finder that runs a late interaction model in the format of sentence-transformers.

Such a model computes one vector a token, as ColBERT does. The package sentence-transformers loads
and runs it; code that comes with a model is never run, nor are pickled weights fetched.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from esa_cli.documents.document import Document
from esa_cli.errors import ModelError, UsageError, get_first_line
from esa_cli.models.files.checkpoint_files import convert_read_errors
from esa_cli.models.files.model_reference import fetch_hub_snapshot
from esa_cli.models.files.quiet_transformers import quiet_transformers
from esa_cli.qa.finding.finder import (
    PIECE,
    SEGMENT_TOKENS,
    FinderSizes,
    TokenisedDocument,
    make_index_layout,
)
from esa_cli.qa.presets.finder_names import MODULES, FinderPlace
from esa_cli.storage.library import Layout
from esa_cli.system.progress import StageProgress, ignore_stage_progress

PACKAGE = "sentence_transformers"
OWN_MODULES = (f"{PACKAGE}.", "pylate.")
"""The beginnings of the names of modules that sentence-transformers has itself."""
FEWEST = 32
BATCH = 8
"""The number of sequences that are encoded together."""
HINT = "choose another finder, or --finder words"


def check_package_installed() -> None:
    """Raises UsageError if sentence-transformers is missing."""
    if importlib.util.find_spec(PACKAGE) is None:
        wrong = f"a finder of late interaction needs the package {PACKAGE}, version 6 or later"
        raise UsageError(wrong, "run pip install 'esa-cli[finders]'")


def fetch_finder_folder(
    place: FinderPlace, progress: StageProgress = ignore_stage_progress
) -> Path:
    """Returns the folder of a late interaction model, which is downloaded if it is on the hub and
    not here. Raises UsageError: the package is missing. ModelError, ResourceError."""
    check_package_installed()
    if place.folder is not None:
        return place.folder
    assert place.ref is not None
    return fetch_hub_snapshot(place.ref, progress, with_folders=True)


def read_late_interaction_sizes(folder: Path) -> FinderSizes:
    """Reads the sizes of a late interaction model from its files. Raises ModelError: a file is
    damaged, or the model needs code of its own."""
    with convert_read_errors(f"the finder {folder}", HINT):
        modules = json.loads((folder / MODULES).read_text("utf-8"))
        config = json.loads((folder / "config.json").read_text("utf-8"))
        dim = int(config.get("hidden_size") or config["text_config"]["hidden_size"])
        for module in modules:
            if not str(module["type"]).startswith(OWN_MODULES):
                wrong = f"the finder {folder} needs code of its own, {module['type']}"
                raise ModelError(f"{wrong}, which esa does not run", HINT)
            if str(module["type"]).endswith(".Pooling"):
                wrong = f"the finder {folder} computes one vector a text, not one a token"
                raise ModelError(wrong, "name a late interaction model, as those of ColBERT's kind")
            path = folder / str(module["path"]) / "config.json"
            if module["path"] and path.is_file():
                dim = int(json.loads(path.read_text("utf-8")).get("out_features") or dim)
    weights = sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
    return FinderSizes(0, dim, folder.name, weights)


class LateInteractionFinder:
    """A finder of a `MultiVectorEncoder` of sentence-transformers, with its own tokenizer.

    The model reads a document in parts of a fixed number of tokens, each with some tokens before
    the part as context and with the model's prompt for documents. A token that the model does not
    score, such as punctuation, repeats the key of a token beside it, which changes no maximum.

    Args:
        encoder: the `MultiVectorEncoder`. digest: of its files. dim: of its vectors.

    Raises ModelError: the model has no fast tokenizer, or reads too few tokens at once."""

    uses_preset_model, piece = False, PIECE

    def __init__(self, encoder: Any, digest: str, dim: int) -> None:
        self.encoder, self._files, self.dim = encoder, digest, dim
        self.tokenizer = encoder.tokenizer
        self._head, self._tail = self._find_ids_around_text(encoder.prompts.get("document") or "")
        longest = getattr(encoder[0], "document_length", None) or encoder.max_seq_length or PIECE
        room = int(longest) - len(self._head) - len(self._tail)
        self.part = SEGMENT_TOKENS
        while self.part + self.part // 8 > room:
            self.part //= 2
        if self.part < FEWEST:
            raise ModelError(f"the finder reads only {longest} tokens at once", HINT)
        self.context = self.part // 8

    @classmethod
    def load(cls, folder: Path, device: Any = "cpu") -> LateInteractionFinder:
        """Loads a model from its folder. Raises UsageError: sentence-transformers is missing.
        ModelError: the model cannot be loaded."""
        check_package_installed()
        sizes = read_late_interaction_sizes(folder)
        with quiet_transformers():
            try:
                package: Any = importlib.import_module(PACKAGE)
                encoder = package.MultiVectorEncoder(
                    str(folder), device=str(device), trust_remote_code=False,
                    local_files_only=True, model_kwargs={"use_safetensors": True},
                )  # fmt: skip
                return cls(encoder.float().eval(), digest_files(folder), sizes.dim)
            except ModelError:
                raise
            except Exception as error:
                wrong = f"the finder {folder} cannot be loaded: {get_first_line(error)}"
                raise ModelError(
                    wrong, "choose a late interaction model in the format of sentence-transformers"
                ) from error

    @property
    def layout(self) -> Layout:
        return make_index_layout(self.dim + self.dim % 2)

    @property
    def digest(self) -> str:
        return f"{self._files} {self.part} {self.context}"

    def tokenise(self, document: Document) -> TokenisedDocument:
        return TokenisedDocument.tokenise(document, self.tokenizer)

    @torch.inference_mode()
    def encode_tokens(self, text: TokenisedDocument, first: int, last: int) -> Tensor:
        starts, pieces = range(first, last, self.part), list[Tensor]()
        for at in range(0, len(starts), BATCH):
            pieces += self._encode_parts(text.ids, starts[at : at + BATCH], last)
        return torch.cat(pieces) if pieces else torch.zeros(0, self.layout.width)

    @torch.inference_mode()
    def encode_questions(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Encodes questions as described in `Finder.encode_questions`, but scaled as the model's
        vectors are; all tokens have equal weight, so that scores are means of the model's sum."""
        rows = self.encoder.encode_query(list(texts), show_progress_bar=False)
        queries = nn.utils.rnn.pad_sequence([one.cpu().float() for one in rows], batch_first=True)
        counts = torch.tensor([len(one) for one in rows])[:, None]
        weights = (torch.arange(queries.shape[1])[None] < counts) / counts
        return self._make_width_even(queries), weights

    def _encode_parts(self, ids: Sequence[int], starts: Sequence[int], last: int) -> list[Tensor]:
        """Returns the reduced keys of the parts of a document that begin at `starts`."""
        before = [min(at, self.context) for at in starts]
        stops = [min(at + self.part, last) for at in starts]
        rows = [
            torch.tensor([*self._head, *ids[at - context : stop], *self._tail])
            for at, context, stop in zip(starts, before, stops, strict=True)
        ]
        pad, device = self.tokenizer.pad_token_id or 0, self.encoder.device
        batch = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad).to(device)
        lengths = torch.tensor([len(row) for row in rows], device=device)[:, None]
        mask = (torch.arange(batch.shape[1], device=device)[None] < lengths).long()
        out = self.encoder({"input_ids": batch, "attention_mask": mask}, task="document")
        pieces = list[Tensor]()
        for row, (at, context, stop) in enumerate(zip(starts, before, stops, strict=True)):
            own = slice(len(self._head) + context, len(self._head) + context + stop - at)
            keys = out["token_embeddings"][row, own].cpu().float()
            scored = out["attention_mask"][row, own].cpu().bool().nonzero()[:, 0]
            if not len(scored):
                scored, keys = torch.zeros(1, dtype=torch.long), torch.zeros_like(keys)
            nearest = torch.searchsorted(scored, torch.arange(stop - at), right=True) - 1
            pieces.append(self._make_width_even(keys[scored[nearest.clamp(min=0)]]))
        return pieces

    def _make_width_even(self, vectors: Tensor) -> Tensor:
        """Appends a zero to vectors of odd dimension, as the library stores two halves."""
        return nn.functional.pad(vectors, (0, self.dim % 2))

    def _find_ids_around_text(self, prompt: str) -> tuple[list[int], list[int]]:
        """Returns the token ids before and after a document's text in an input of the model."""
        if not self.tokenizer.is_fast:
            raise ModelError("the finder has no fast tokenizer", HINT)
        out = self.tokenizer(prompt + "a", return_offsets_mapping=True)
        ids, ends = list(out["input_ids"]), [end for _, end in out["offset_mapping"]]
        at = ends.index(len(prompt) + 1)
        return ids[:at], ids[at + 1 :]


def digest_files(folder: Path) -> str:
    """Returns the SHA-256 digest of the files of a model that determine its vectors."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".json", ".safetensors", ".txt", ".model"):
            with path.open("rb") as file:
                inner = hashlib.file_digest(file, "sha256").hexdigest()
            digest.update(f"{path.relative_to(folder).as_posix()} {inner}\n".encode())
    return digest.hexdigest()
