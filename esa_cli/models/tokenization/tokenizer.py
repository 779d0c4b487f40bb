"""Tokenizers of models: of transformers, or `PlainTokenizer`, which takes its place.

The import of transformers takes longer than reading a tokenizer's file. `PlainTokenizer` works by
the package tokenizers alone, which transformers uses too; what it does not know is left to the
tokenizer of transformers, loaded when it is first needed. When transformers has loaded a tokenizer,
its facts are kept, or that it does more, until one of its files or of the packages changes; see
`settings_cache`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

from esa_cli.errors import ModelError, UsageError
from esa_cli.models.files.checkpoint_files import check_tokenizer, reading
from esa_cli.models.files.model_reference import ModelRef
from esa_cli.models.files.prepared_models import path_of
from esa_cli.models.files.quiet_transformers import quiet_transformers
from esa_cli.models.files.settings_cache import cache_settings, cached_settings, installed
from esa_cli.models.tokenization.chat_rendering import check_template
from esa_cli.system.text import text_digest

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


def check_backend(backend: Any, folder: Path) -> None:
    """Raises ModelError where a tokenizer of tokenizers writes many letters in place of one before
    it cuts a text, so that a page takes minutes, or has ids beyond all vocabularies, whose tables
    would be larger than the memory."""
    rules, letters = [], 1
    if backend.normalizer is not None:
        rules.append(json.loads(backend.normalizer.__getstate__()))
    for rule in rules:  # the list grows
        rules += rule.get("normalizers", [])
        letters *= max(1, len(rule.get("content", "")), len(rule.get("prepend", "")))
    largest = max(backend.get_vocab().values(), default=0)
    if letters > MOST_EXPANSION or largest > MOST_IDS:
        raise ModelError(
            f"the tokenizer in {folder} must write at most {MOST_EXPANSION} letters in place of "
            f"one and have ids up to {MOST_IDS:,}, got {letters:,} letters and ids to {largest:,}",
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
        texts = [text] if isinstance(text, str) else list(text)
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
            encoded = backend.encode_batch(texts, add_special_tokens=add_special_tokens)
        out = {"input_ids": [one.ids for one in encoded]}
        if return_offsets_mapping:
            out["offset_mapping"] = [one.offsets for one in encoded]
        return {name: rows[0] for name, rows in out.items()} if isinstance(text, str) else out

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **others: Any) -> str:
        """The text of token ids."""
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        known = isinstance(ids, (list, tuple)) and all(isinstance(one, int) for one in ids)
        if not known or any(others.values()):
            text: str = self.whole.decode(
                token_ids, skip_special_tokens=skip_special_tokens, **others
            )
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
        texts_alone = conversation and all(
            isinstance(one, dict) and all(type(text) is str for text in one.values())
            for one in conversation
        )
        if self.chat_template and not tokenize and options.keys() <= CHAT_OPTIONS and texts_alone:
            from jinja2 import TemplateError

            from esa_cli.models.tokenization.chat_rendering import render_chat

            values = {"tools": None, "documents": None, "add_generation_prompt": False, **options}
            with suppress(TemplateError):  # what transformers says of it is better known
                return render_chat(
                    self.chat_template,
                    {**values, "messages": conversation, **self.special_tokens_map},
                )
        return self.whole.apply_chat_template(conversation, tokenize=tokenize, **options)


FACTS_FORMAT = 1
"""Raised when what is kept differs."""
FILES = (
    "config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json", "tekken.json",
    "vocab*", "merges*", "*.model", "chat_template*", "additional_chat_templates/*.jinja",
)  # fmt: skip
"""Files of a model's folder from which transformers makes its tokenizer."""
MEMBERS = (
    "__call__", "_encode_plus", "_convert_encoding", "set_truncation_and_padding", "decode",
    "_decode", "convert_ids_to_tokens", "apply_chat_template", "get_chat_template",
    "special_tokens_map", "backend_tokenizer",
)  # fmt: skip
"""Members of the general class that a family's may replace."""


def cached_facts(folder: Path) -> TokenizerFacts | None:
    """The facts of a folder's tokenizer; None: they are not known, or it is not a plain one."""
    values = cached_settings(*_kept(folder)) or {}
    with suppress(TypeError):
        return TokenizerFacts(**values["facts"]) if values.get("facts") else None
    return None


def cache_facts(folder: Path, tokenizer: Any) -> None:
    """Keeps the facts of a tokenizer that transformers has loaded from a folder, once."""

    def facts() -> dict[str, Any]:
        if not _is_plain(folder, tokenizer):
            return {"facts": None}
        names = [f"{name}_id" for name in tokenizer.SPECIAL_TOKENS_ATTRIBUTES]
        facts = TokenizerFacts(
            text_digest(tokenizer.backend_tokenizer.to_str()),
            tokenizer.chat_template,
            dict(tokenizer.special_tokens_map),
            {name: getattr(tokenizer, name) for name in names},
        )
        return {"facts": asdict(facts)}

    cache_settings(*_kept(folder), facts)


def _is_plain(folder: Path, tokenizer: Any) -> bool:
    """Whether a `PlainTokenizer` does what this tokenizer does: its class has no ways of its own,
    and nothing is changed before or after what the backend does."""
    import transformers

    general = transformers.PreTrainedTokenizerFast
    if not isinstance(tokenizer, general) or any(
        getattr(type(tokenizer), name) is not getattr(general, name) for name in MEMBERS
    ):
        return False
    try:
        rules = plain_backend(folder).to_str()
    except Exception:  # no tokenizer.json, or one that only transformers can read
        return False
    backend = tokenizer.backend_tokenizer
    cleans = tokenizer.clean_up_tokenization_spaces and (
        type(backend.model).__name__ != "BPE"
        or tokenizer.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output
    )
    cuts = backend.truncation is not None or backend.padding is not None
    return (
        rules == backend.to_str()
        and isinstance(tokenizer.chat_template, str | None)
        and not (cleans or cuts or tokenizer.split_special_tokens)
    )


def _kept(folder: Path) -> tuple[str, list[Path]]:
    files = {file for pattern in FILES for file in folder.glob(pattern) if file.is_file()}
    kind = f"tokenizer {FACTS_FORMAT} {installed('transformers')} {installed('tokenizers')}"
    return kind, sorted(files)


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of transformers in a model's folder. Raises ModelError."""
    check_tokenizer(folder)
    hint = "fetch the model again, or check that its tokenizer needs no code of its own"
    with reading(f"the tokenizer in {folder}", hint), quiet_transformers():
        tokenizer = _tokenizer_class(folder).from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
        file = folder / "chat_template.json"  # of models that also see images
        if file.is_file() and tokenizer.chat_template is None:
            tokenizer.chat_template = json.loads(file.read_text("utf-8"))["chat_template"]
        check_template(tokenizer.chat_template)
        if tokenizer.is_fast:
            check_backend(tokenizer.backend_tokenizer, folder)
        cache_facts(folder, tokenizer)
        return tokenizer


def _tokenizer_class(folder: Path) -> Any:
    """The class to load by: the general one where `AutoTokenizer`, whose import takes two seconds,
    would take that. For other families it may prefer a class of theirs."""
    import transformers

    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        kind = json.loads((folder / "config.json").read_text("utf-8"))["model_type"]
        settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
        if (
            kind == "llama"
            and settings.get("tokenizer_class") in ("PreTrainedTokenizerFast", "TokenizersBackend")
            and "auto_map" not in settings
            and (folder / "tokenizer.json").is_file()
        ):
            return transformers.PreTrainedTokenizerFast
    return transformers.AutoTokenizer


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
            thread = ThreadPoolExecutor(1, "esa-tokenizer")
            _ahead[folder] = thread.submit(_plain, folder)
            thread.shutdown(wait=False)


_ahead: dict[Path, Future[PlainTokenizer | None]] = {}
"""What `read_ahead` has begun, by the model's folder."""


def _plain(folder: Path) -> PlainTokenizer | None:
    if (facts := cached_facts(folder)) is None:
        return None
    with suppress(Exception):  # whatever is wrong with the file, `load_tokenizer` says it
        return PlainTokenizer(plain_backend(folder), facts, lambda: load_tokenizer(folder))
    return None
