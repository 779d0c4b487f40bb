"""A model's small files, so that a large model can be judged before it is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from esa_cli.errors import ModelError
from esa_cli.models import hub
from esa_cli.models.model_reference import ModelRef, as_reference
from esa_cli.models.prepared_models import path_of
from esa_cli.models.resolve import resolve
from esa_cli.system.progress import Progress


def peek(ref: str | ModelRef, progress: Progress | None = None) -> Path:
    """A folder with the model's config.json and tokenizer files, and perhaps its weights.

    Of a hub model that is not on this machine only these files are fetched; models of other
    kinds are resolved.

    Raises:
        ModelError, ResourceError: as `resolve`.
    """
    ref = as_reference(ref)
    if ref.kind != "hub":
        return resolve(ref, progress=progress)
    folder = path_of(ref)
    return folder if folder is not None else hub.small_files(ref)


def count_tokens(folder: Path, text: str) -> int:
    """Tokens of `text`, special ones not added.

    Raises:
        ModelError: the folder's tokenizer cannot be read.
    """
    file = folder / "tokenizer.json"
    try:
        if file.is_file():
            from tokenizers import Tokenizer

            tokenizer = Tokenizer.from_file(str(file))
            tokenizer.no_truncation()
            return len(tokenizer.encode(text, add_special_tokens=False))
        import transformers

        slow: Any = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        return len(slow(text, add_special_tokens=False, verbose=False)["input_ids"])
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ModelError(
            f"The tokenizer in {folder} cannot be read: {reason}", "Fetch the model again."
        ) from error
