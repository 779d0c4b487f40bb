"""A finder that runs a late interaction model, as ColBERT, by the package sentence-transformers.

Code that comes with a model is never run, and pickled weights are never fetched."""

from __future__ import annotations

import hashlib
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
from esa_cli.models.files.quiet_transformers import quiet_transformers
from esa_cli.qa.finding.finder import HINT, PIECE, SEGMENT_TOKENS, FinderSizes, TokenisedDocument
from esa_cli.qa.presets.preset_files import MODULES

PACKAGE = "sentence_transformers"
BATCH = 8
"""The number of sequences that are encoded together."""


def check_package_installed() -> None:
    """Raises UsageError if sentence-transformers is missing."""
    if importlib.util.find_spec(PACKAGE) is None:
        wrong = f"a finder of late interaction needs the package {PACKAGE}, version 6 or later"
        raise UsageError(wrong, "run pip install 'esa-cli[finders]'")


def read_late_interaction_sizes(folder: Path) -> FinderSizes:
    """Reads the sizes of a model from its files. Raises ModelError: a file is damaged, or the model
    needs code of its own, or has one vector a text. UsageError: see `check_package_installed`."""
    check_package_installed()
    with convert_read_errors(f"the finder {folder}", HINT):
        dim = int(json.loads((folder / "config.json").read_text("utf-8"))["hidden_size"])
        for module in json.loads((folder / MODULES).read_text("utf-8")):
            kind, path = str(module["type"]), folder / str(module["path"]) / "config.json"
            if not kind.startswith((f"{PACKAGE}.", "pylate.")) or kind.endswith(".Pooling"):
                lacks = "has one vector a text" if "Pooling" in kind else "needs code of its own"
                raise ModelError(f"the finder {folder} {lacks}: {kind}", HINT)
            if path.is_file():
                dim = int(json.loads(path.read_text("utf-8")).get("out_features") or dim)
    weights = sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
    return FinderSizes(0, dim, folder.name, weights)


class LateInteractionFinder:
    """A finder of a `MultiVectorEncoder` of sentence-transformers, with its own tokenizer.

    The model reads a document in parts, each with some tokens before it as context and with the
    model's prompt for documents. A token that the model does not score, such as punctuation,
    repeats the key of a token beside it, which changes no maximum.

    Raises ModelError: the model cannot be loaded. UsageError: the package is missing."""

    uses_preset_model, piece = False, PIECE

    def __init__(self, folder: Path, device: Any = "cpu") -> None:
        self.sizes = read_late_interaction_sizes(folder)
        self.layout = self.sizes.layout
        with quiet_transformers():
            try:
                package: Any = importlib.import_module(PACKAGE)
                self.encoder = package.MultiVectorEncoder(
                    str(folder), device=str(device), trust_remote_code=False,
                    local_files_only=True, model_kwargs={"use_safetensors": True},
                ).float()  # fmt: skip
                prompt = self.encoder.prompts.get("document") or ""
                around = self.encoder.tokenizer(prompt + "a", return_offsets_mapping=True)
            except Exception as error:  # of many kinds, from the files and the package
                wrong = f"the finder {folder} cannot be loaded: {get_first_line(error)}"
                raise ModelError(wrong, HINT) from error
        ids = list(around["input_ids"])
        at = [end for _, end in around["offset_mapping"]].index(len(prompt) + 1)
        self._head, self._tail = ids[:at], ids[at + 1 :]
        longest = getattr(self.encoder[0], "document_length", None) or self.encoder.max_seq_length
        self.part = SEGMENT_TOKENS
        while self.part > 1 and self.part + self.part // 8 + len(ids) > (longest or PIECE):
            self.part //= 2
        self.context = self.part // 8
        self.digest = f"{_digest_files(folder)} {self.part} {self.context}"

    def tokenise(self, document: Document) -> TokenisedDocument:
        return TokenisedDocument.tokenise(document, self.encoder.tokenizer)

    @torch.inference_mode()
    def encode_tokens(self, text: TokenisedDocument, first: int, last: int) -> Tensor:
        starts, pieces = range(first, last, self.part), [torch.zeros(0, self.layout.width)]
        for at in range(0, len(starts), BATCH):
            pieces += self._encode_parts(text.ids, starts[at : at + BATCH], last)
        return torch.cat(pieces)

    @torch.inference_mode()
    def encode_questions(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Encodes questions in the scale of the model's vectors; all tokens have equal weight."""
        rows = self.encoder.encode_query(list(texts), show_progress_bar=False)
        queries = nn.utils.rnn.pad_sequence([one.cpu() for one in rows], batch_first=True)
        counts = torch.tensor([len(one) for one in rows])[:, None]
        weights = (torch.arange(queries.shape[1])[None] < counts) / counts
        return self.sizes.make_width_even(queries), weights

    def _encode_parts(self, ids: Sequence[int], starts: Sequence[int], last: int) -> list[Tensor]:
        """Returns the reduced keys of the parts of a document that begin at `starts`."""
        parts = [(max(0, at - self.context), at, min(at + self.part, last)) for at in starts]
        rows = [torch.tensor([*self._head, *ids[low:stop], *self._tail]) for low, _, stop in parts]
        padding = self.encoder.tokenizer.pad_token_id or 0
        batch = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=padding)
        lengths = torch.tensor([len(row) for row in rows])[:, None]
        mask = (torch.arange(batch.shape[1])[None] < lengths).long()
        inputs = {"input_ids": batch, "attention_mask": mask}
        inputs = {name: one.to(self.encoder.device) for name, one in inputs.items()}
        out, pieces = self.encoder(inputs, task="document"), list[Tensor]()
        for row, (low, at, stop) in enumerate(parts):
            own = slice(len(self._head) + at - low, len(self._head) + stop - low)
            keys = out["token_embeddings"][row, own].cpu()
            scored = out["attention_mask"][row, own].cpu().nonzero()[:, 0]
            if not len(scored):
                scored, keys = torch.zeros(1, dtype=torch.long), torch.zeros_like(keys)
            nearest = torch.searchsorted(scored, torch.arange(stop - at), right=True) - 1
            pieces.append(self.sizes.make_width_even(keys[scored[nearest.clamp(min=0)]]))
        return pieces


def _digest_files(folder: Path) -> str:
    """Returns the SHA-256 digest of the files of a model that determine its vectors."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".json", ".safetensors", ".txt", ".model"):
            with path.open("rb") as file:
                inner = hashlib.file_digest(file, "sha256").hexdigest()
            digest.update(f"{path.relative_to(folder).as_posix()} {inner}\n".encode())
    return digest.hexdigest()
