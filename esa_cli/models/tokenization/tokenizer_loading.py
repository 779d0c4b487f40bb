"""Loading the tokenizer in a model's folder: of transformers, or one that takes its place."""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from esa_cli.errors import ModelError, UsageError
from esa_cli.models.files.checkpoint_files import check_tokenizer, reading
from esa_cli.models.files.model_reference import ModelRef
from esa_cli.models.files.prepared_models import path_of
from esa_cli.models.loading.quiet_transformers import gc_paused, quiet_transformers
from esa_cli.models.tokenization.chat_rendering import check_template
from esa_cli.models.tokenization.plain_tokenizer import (
    PlainTokenizer,
    check_expansion,
    check_ids,
    plain_backend,
)
from esa_cli.models.tokenization.tokenizer_cache import cache_facts, cached_facts

GENERAL = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Names of the class for any tokenizer.json."""


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of transformers in a model's folder. Raises ModelError."""
    check_tokenizer(folder)
    hint = "fetch the model again, or check that its tokenizer needs no code of its own"
    with reading(f"the tokenizer in {folder}", hint), quiet_transformers(), gc_paused():
        tokenizer = _tokenizer_class(folder).from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
        _add_template(folder, tokenizer)
        check_template(tokenizer.chat_template)
        if tokenizer.is_fast:
            check_expansion(tokenizer.backend_tokenizer, folder)
            check_ids(tokenizer.backend_tokenizer, folder)
        cache_facts(folder, tokenizer)
        return tokenizer


def _add_template(folder: Path, tokenizer: Any) -> None:
    """Sets the chat template that models which also see images keep in a file of their own."""
    file = folder / "chat_template.json"
    if file.is_file() and tokenizer.chat_template is None:
        tokenizer.chat_template = json.loads(file.read_text("utf-8"))["chat_template"]


def load_plain_tokenizer(folder: Path) -> PlainTokenizer | None:
    """The tokenizer in a model's folder, where transformers has loaded it on this machine before
    and nothing of it is unusual; else None."""
    begun = _ahead.pop(folder, None)
    return _plain(folder) if begun is None else begun.result()


def read_ahead(ref: ModelRef) -> None:
    """Begins to read the tokenizer of a model on this machine, which the next
    `load_plain_tokenizer` returns. The caller imports torch meanwhile, by one core."""
    with suppress(ModelError, UsageError):
        if (folder := path_of(ref)) is not None and folder not in _ahead:
            reading = ThreadPoolExecutor(1, "esa-tokenizer")
            _ahead[folder] = reading.submit(_plain, folder)
            reading.shutdown(wait=False)


_ahead: dict[Path, Future[PlainTokenizer | None]] = {}
"""What `read_ahead` has begun, by the model's folder."""


def _plain(folder: Path) -> PlainTokenizer | None:
    if (facts := cached_facts(folder)) is None:
        return None
    try:
        return PlainTokenizer(plain_backend(folder), facts, lambda: load_tokenizer(folder))
    except Exception:  # whatever is wrong with the file, `load_tokenizer` says it
        return None


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
