"""Loading the tokenizer of transformers in a model's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from esa_cli.errors import ModelError, first_line
from esa_cli.models.checkpoint_files import check_tokenizer
from esa_cli.models.quiet_transformers import gc_paused, quiet_transformers

GENERAL = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Names of the class for any tokenizer.json."""


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of transformers in a model's folder. Raises ModelError."""
    check_tokenizer(folder)
    try:
        with quiet_transformers(), gc_paused():
            return _tokenizer_class(folder).from_pretrained(
                folder, trust_remote_code=False, local_files_only=True
            )
    except Exception as error:
        raise ModelError(
            f"the tokenizer in {folder} cannot be loaded: {first_line(error)}",
            "fetch the model again, or check that its tokenizer needs no code of its own",
        ) from error


def _tokenizer_class(folder: Path) -> Any:
    """The class to load by: the general one where `AutoTokenizer`, whose import takes two seconds,
    would take that. For other families it may prefer a class of theirs."""
    import transformers

    try:
        kind = json.loads((folder / "config.json").read_text("utf-8"))["model_type"]
        settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
        general = (
            kind == "llama"
            and settings.get("tokenizer_class") in GENERAL
            and "auto_map" not in settings
            and (folder / "tokenizer.json").is_file()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        general = False
    return transformers.PreTrainedTokenizerFast if general else transformers.AutoTokenizer
