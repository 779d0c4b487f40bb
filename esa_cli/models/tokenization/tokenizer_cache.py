"""The facts of tokenizers that `PlainTokenizer` can take the place of.

When transformers has loaded a tokenizer, both are compared: rules, special tokens and what the chat
template makes of conversations. The facts, or that it cannot be done, are kept until a file of the
tokenizer or one of the packages changes; see `settings_cache`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from esa_cli.errors import ModelError
from esa_cli.models.files.settings_cache import (
    UNUSABLE,
    installed,
    read_settings,
    settings_path,
    write_settings,
)
from esa_cli.models.tokenization.chat_rendering import limited_rendering
from esa_cli.models.tokenization.plain_tokenizer import (
    PlainTokenizer,
    TokenizerFacts,
    plain_backend,
)
from esa_cli.system.text import text_digest

FORMAT = 1
"""Raised when what is kept differs."""
FILES = (
    "config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json", "tekken.json",
    "vocab*", "merges*", "*.model", "chat_template*", "additional_chat_templates/*.jinja",
)  # fmt: skip
"""Files of a model's folder from which transformers makes its tokenizer."""
OWN = (
    "__call__", "_encode_plus", "_convert_encoding", "set_truncation_and_padding", "decode",
    "_decode", "convert_ids_to_tokens", "apply_chat_template", "get_chat_template",
    "special_tokens_map", "backend_tokenizer",
)  # fmt: skip
"""Members of the general class that a family's may replace by its own."""
TURNS = [
    {"role": "system", "content": "Answer."},
    {"role": "user", "content": " Who?\n"},
    {"role": "assistant", "content": "Ahab."},
    {"role": "user", "content": "Why?"},
]
"""A conversation that is rendered by both."""


def cached_facts(folder: Path) -> TokenizerFacts | None:
    """The facts of a folder's tokenizer; None: they are not known, or it is not a plain one."""
    with suppress(*UNUSABLE, TypeError):
        values = read_settings(_path(folder))
        return TokenizerFacts(**values["facts"]) if values and values["facts"] else None
    return None


def cache_facts(folder: Path, tokenizer: Any) -> None:
    """Keeps the facts of a tokenizer that transformers has loaded from a folder, once; where they
    cannot be written, they are not kept. Raises ModelError: as `limited_rendering`."""
    with suppress(*UNUSABLE):
        path = _path(folder)
        with suppress(OSError, ValueError):
            if read_settings(path) is not None:
                return
        found = _facts(folder, tokenizer)
        write_settings(path, {"facts": found and asdict(found)})


def _facts(folder: Path, tokenizer: Any) -> TokenizerFacts | None:
    """None: `PlainTokenizer` would not do what this tokenizer does."""
    import transformers

    general = transformers.PreTrainedTokenizerFast
    if not isinstance(tokenizer, general) or any(
        getattr(type(tokenizer), name) is not getattr(general, name) for name in OWN
    ):
        return None
    rules, template = tokenizer.backend_tokenizer.to_str(), tokenizer.chat_template
    special = dict(tokenizer.special_tokens_map)
    ids = {
        f"{name}_id": getattr(tokenizer, f"{name}_id") for name in general.SPECIAL_TOKENS_ATTRIBUTES
    }
    facts = TokenizerFacts(text_digest(rules), template, special, ids)
    try:
        plain = PlainTokenizer(plain_backend(folder), facts, lambda: tokenizer)
    except Exception:  # no tokenizer.json, or one that only transformers can read
        return None
    same = (
        plain.backend_tokenizer.to_str() == rules
        and _is_usual(tokenizer)
        and _renders_alike(plain, tokenizer)
    )
    return facts if same else None


def _is_usual(tokenizer: Any) -> bool:
    """Whether nothing is changed before or after what the backend does."""
    backend = tokenizer.backend_tokenizer
    cleans = tokenizer.clean_up_tokenization_spaces and (
        type(backend.model).__name__ != "BPE"
        or tokenizer.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output
    )
    return (
        not cleans
        and not tokenizer.split_special_tokens
        and backend.truncation is None
        and backend.padding is None
    )


def _renders_alike(plain: PlainTokenizer, tokenizer: Any) -> bool:
    """Whether both give a conversation the same text, or refuse it. Raises ModelError: as
    `limited_rendering`."""
    if plain.chat_template is None:
        return True
    if not isinstance(plain.chat_template, str):
        return False

    def rendered(one: Any, first: int, last: int, prompt: bool) -> str | None:
        try:
            with limited_rendering():
                text: str = one.apply_chat_template(
                    TURNS[first:last], tokenize=False, add_generation_prompt=prompt,
                    enable_thinking=False, date_string="26 Jul 2024",
                )  # fmt: skip
            return text
        except ModelError:
            raise
        except Exception:
            return None

    cases = [(first, last, prompt) for first in (0, 1) for last in (2, 3, 4) for prompt in (0, 1)]
    return all(
        rendered(plain, first, last, bool(prompt)) == rendered(tokenizer, first, last, bool(prompt))
        for first, last, prompt in cases
    )


def _path(folder: Path) -> Path:
    files = {file for pattern in FILES for file in folder.glob(pattern) if file.is_file()}
    kind = f"tokenizer {FORMAT} {installed('transformers')} {installed('tokenizers')}"
    return settings_path(kind, sorted(files))
