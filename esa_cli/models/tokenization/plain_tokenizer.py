"""A fast tokenizer without the code of transformers, whose import takes longer than its file's.

It does what is asked of a tokenizer here by the package tokenizers alone, which transformers uses
too. The rest is left to the tokenizer of transformers, which is loaded when it is first needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

from esa_cli.errors import ModelError

CHAT_OPTIONS = {"add_generation_prompt", "enable_thinking", "date_string"}
"""Arguments of `apply_chat_template` that are variables of the template and nothing else."""

MOST_EXPANSION, MOST_IDS = 64, 1 << 23
"""Letters in place of one; and a token's id: the largest vocabularies have 2**18 tokens."""
_ENCODING = Lock()
"""Held while a text is encoded: whether words like special tokens are split is a setting of the
shared backend, which another thread must not change meanwhile."""


@dataclass(frozen=True)
class TokenizerFacts:
    """What transformers makes of a tokenizer's configuration. `digest` is the SHA-256 of its rules,
    the text of the backend; `special` are its special tokens by name, `ids` the tokens' ids."""

    digest: str
    chat_template: str | None
    special: dict[str, str]
    ids: dict[str, int | None] = field(default_factory=dict)


def plain_backend(folder: Path) -> Any:
    """The tokenizers.Tokenizer of a folder's tokenizer.json. Raises an Exception of that package
    where there is none."""
    from tokenizers import Tokenizer, processors

    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if backend.post_processor is None:  # as transformers does; it adds nothing
        backend.post_processor = processors.TemplateProcessing("$A:0", "$A:0 $B:1", [])
    return backend


def check_expansion(backend: Any, folder: Path) -> None:
    """Raises ModelError where a fast tokenizer writes many letters in place of one before it cuts a
    text, so that a page takes minutes. backend: of tokenizers."""
    rules, letters = [], 1
    if backend.normalizer is not None:
        rules.append(json.loads(backend.normalizer.__getstate__()))
    for rule in rules:  # the list grows
        rules += rule.get("normalizers", [])
        letters *= max(1, len(rule.get("content", "")), len(rule.get("prepend", "")))
    if letters > MOST_EXPANSION:
        raise ModelError(
            f"the tokenizer in {folder} must write at most {MOST_EXPANSION} letters in place of "
            f"one, got rules that write {letters:,}", "use another model",
        )  # fmt: skip


def check_ids(backend: Any, folder: Path) -> None:
    """Raises ModelError where a fast tokenizer's ids are beyond all vocabularies, as tables of them
    would be larger than the memory. backend: of tokenizers."""
    if (largest := max(backend.get_vocab().values(), default=0)) > MOST_IDS:
        raise ModelError(
            f"the ids of the tokenizer in {folder} must be at most {MOST_IDS:,}, got {largest:,}",
            "use another model",
        )


class PlainTokenizer:
    """As the tokenizer of transformers of which it has the facts.

    Args:
        backend: of `plain_backend`. facts: kept when transformers had loaded it. whole: loads it
            again.
    """

    is_fast = True

    def __init__(self, backend: Any, facts: TokenizerFacts, whole: Callable[[], Any]) -> None:
        self.backend_tokenizer, self.facts, self._load = backend, facts, whole
        self.chat_template, self.special_tokens_map = facts.chat_template, dict(facts.special)

    @cached_property
    def whole(self) -> Any:
        """The tokenizer of transformers, loaded now. Raises ModelError."""
        return self._load()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "facts" not in self.__dict__:  # it is being copied
            raise AttributeError(name)
        if name in self.facts.ids:
            return self.facts.ids[name]
        if f"{name}_id" in self.facts.ids:
            return self.facts.special.get(name)
        return getattr(self.whole, name)

    def __call__(
        self,
        text: str | Sequence[str],
        *,
        add_special_tokens: bool = True,
        split_special_tokens: bool = False,
        return_offsets_mapping: bool = False,
        verbose: bool = True,
        **others: Any,
    ) -> Any:
        """Ids, and offsets where they are asked for, of one text or of several."""
        texts = [text] if isinstance(text, str) else text
        if others or not texts or not all(isinstance(one, str) for one in texts):
            return self.whole(
                text, add_special_tokens=add_special_tokens,
                split_special_tokens=split_special_tokens,
                return_offsets_mapping=return_offsets_mapping, verbose=verbose, **others,
            )  # fmt: skip
        backend = self.backend_tokenizer
        with _ENCODING:
            if backend.encode_special_tokens != split_special_tokens:
                backend.encode_special_tokens = split_special_tokens
            found = backend.encode_batch(list(texts), add_special_tokens=add_special_tokens)
        out = {"input_ids": [one.ids for one in found]}
        if return_offsets_mapping:
            out["offset_mapping"] = [one.offsets for one in found]
        return {name: rows[0] for name, rows in out.items()} if isinstance(text, str) else out

    def decode(
        self,
        token_ids: Any,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> str:
        """The text of token ids."""
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        if clean_up_tokenization_spaces or not _are_ids(ids):
            text: str = self.whole.decode(
                token_ids, skip_special_tokens=skip_special_tokens,
                clean_up_tokenization_spaces=clean_up_tokenization_spaces,
            )  # fmt: skip
            return text
        return str(self.backend_tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    def convert_ids_to_tokens(self, ids: Any) -> Any:
        """The names of tokens in the vocabulary, of one id or of several; None where there is no
        such token."""
        name = self.backend_tokenizer.id_to_token
        return name(ids) if isinstance(ids, int) else [name(int(one)) for one in ids]

    def apply_chat_template(
        self, conversation: Sequence[dict[str, str]], *, tokenize: bool = True, **options: Any
    ) -> Any:
        """A conversation in the model's template."""
        known = not tokenize and options.keys() <= CHAT_OPTIONS and _are_messages(conversation)
        if known and self.chat_template:
            from jinja2 import TemplateError

            from esa_cli.models.tokenization.chat_rendering import render_chat

            values = {"tools": None, "documents": None, "add_generation_prompt": False}
            try:
                return render_chat(
                    self.chat_template,
                    {"messages": conversation, **values, **self.special_tokens_map, **options},
                )
            except TemplateError:  # what transformers says of it is better known
                pass
        return self.whole.apply_chat_template(conversation, tokenize=tokenize, **options)


def _are_ids(ids: Any) -> bool:
    return isinstance(ids, (list, tuple)) and all(isinstance(one, int) for one in ids)


def _are_messages(conversation: Sequence[Any]) -> bool:
    """Whether a template may see them as they are: some, and texts alone."""
    return len(conversation) > 0 and all(
        isinstance(one, dict) and all(type(text) is str for text in one.values())
        for one in conversation
    )
