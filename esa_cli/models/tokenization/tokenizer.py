"""Loads the tokenizers of models, and tokenises long texts.

A `StandaloneTokenizer` needs no transformers, whose import is slow, but only the package tokenizers
and metadata that is cached when transformers first loads the tokenizer."""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import Environment, TemplateError, nodes

from esa_cli.errors import DocumentError, ModelError
from esa_cli.models.files.checkpoint_files import (
    cache_model_metadata,
    check_tokenizer_files_exist,
    convert_read_errors,
    load_cached_metadata,
)
from esa_cli.models.files.quiet_transformers import quiet_transformers
from esa_cli.system.text import digest_text

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

# -- Loading


def load_tokenizer(folder: Path) -> Any:
    """Loads a folder's tokenizer by transformers. Raises ModelError: it is missing or refused."""
    check_tokenizer_files_exist(folder)
    hint = "fetch the model again, or use a model whose tokenizer needs no code of its own"
    with convert_read_errors(f"the tokenizer in {folder}", hint), quiet_transformers():
        from transformers import AutoTokenizer

        tokenizer: Any = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
        file = folder / "chat_template.json"  # of models that also see images
        if file.is_file() and tokenizer.chat_template is None:
            tokenizer.chat_template = json.loads(file.read_text("utf-8"))["chat_template"]
        _check_chat_template(tokenizer.chat_template)
        if tokenizer.is_fast:
            _check_tokenizer_limits(tokenizer.backend_tokenizer, folder)
        make_metadata = partial(_make_tokenizer_metadata, folder, tokenizer)
        cache_model_metadata("plain tokenizer", folder, make_metadata)
        return tokenizer


_MAX_EXPANSION, _MAX_ID = 64, 1 << 23
"""The most characters that replace one, and the largest token id; usual are up to 2**18."""


def _check_tokenizer_limits(backend: Any, folder: Path) -> None:
    """Raises ModelError if a tokenizer could take minutes for a page, or fill the memory."""
    rules, letters = [], 1
    if backend.normalizer is not None:
        rules.append(json.loads(backend.normalizer.__getstate__()))
    for rule in rules:  # the list grows
        rules += rule.get("normalizers", [])
        letters *= max(1, len(rule.get("content", "")), len(rule.get("prepend", "")))
    largest = max(backend.get_vocab().values(), default=0)
    if letters > _MAX_EXPANSION or largest > _MAX_ID:
        raise ModelError(
            f"the tokenizer in {folder} must replace one character by at most {_MAX_EXPANSION} "
            f"characters and have token ids up to {_MAX_ID:,}, got {letters:,} and {largest:,}",
            "use another model",
        )


_tokenizers_being_loaded: dict[Path, Future[StandaloneTokenizer | None]] = {}


def begin_loading_standalone_tokenizer(folder: Path) -> None:
    """Starts a thread that loads the tokenizer for the next call of `load_fastest_tokenizer`."""
    thread = ThreadPoolExecutor(1, "esa-tokenizer")
    _tokenizers_being_loaded[folder] = thread.submit(load_standalone_tokenizer, folder)
    thread.shutdown(wait=False)


def load_fastest_tokenizer(folder: Path) -> Any:
    """Loads a `StandaloneTokenizer` if possible, else that of transformers. Raises ModelError."""
    begun = _tokenizers_being_loaded.pop(folder, None)
    found = load_standalone_tokenizer(folder) if begun is None else begun.result()
    return found or load_tokenizer(folder)


def load_standalone_tokenizer(folder: Path) -> StandaloneTokenizer | None:
    """Loads the tokenizer in a model's folder without transformers, or returns None if transformers
    has not loaded the tokenizer on this machine before, or if the tokenizer is unusual."""
    with suppress(Exception):  # `load_tokenizer` says what is wrong with a file
        if data := load_cached_metadata("plain tokenizer", folder):
            backend = _load_tokenizer_backend(folder)
            return StandaloneTokenizer(backend, data["digest"], folder)
    return None


# -- Metadata of a tokenizer

_MEMBERS = (
    "__call__", "_encode_plus", "_convert_encoding", "set_truncation_and_padding",
    "backend_tokenizer",
)  # fmt: skip
"""The members of transformers' general tokenizer class that a family's class may override."""


def _make_tokenizer_metadata(folder: Path, tokenizer: Any) -> dict[str, Any]:
    """Returns the digest of tokenizer.json, or {} if a `StandaloneTokenizer` would differ."""
    import transformers

    general = transformers.PreTrainedTokenizerFast
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    plain = ""
    with suppress(Exception):  # no tokenizer.json, or one that only transformers can read
        plain = _load_tokenizer_backend(folder).to_str()
    if (
        not isinstance(tokenizer, general)
        or any(getattr(type(tokenizer), n) is not getattr(general, n) for n in _MEMBERS)
        or plain != backend.to_str()
        or tokenizer.split_special_tokens
        or backend.truncation is not None
        or backend.padding is not None
    ):
        return {}
    return {"digest": digest_text(plain)}


def _load_tokenizer_backend(folder: Path) -> Any:
    from tokenizers import Tokenizer, processors

    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if backend.post_processor is None:  # as transformers does; it adds nothing
        backend.post_processor = processors.TemplateProcessing("$A:0", "$A:0 $B:1", [])
    return backend


_encoding_lock = Lock()
"""A lock, since the shared backend has a setting that says whether special tokens are split."""
_CALL_OPTIONS = {"add_special_tokens", "split_special_tokens", "return_offsets_mapping", "verbose"}


class StandaloneTokenizer:
    """A tokenizer that tokenises texts without transformers; for everything else it loads the
    transformers tokenizer. `digest` is the SHA-256 of tokenizer.json."""

    is_fast = True

    def __init__(self, backend: Any, digest: str, folder: Path) -> None:
        self.backend_tokenizer, self.digest, self._folder = backend, digest, folder

    @cached_property
    def transformers_tokenizer(self) -> Any:
        """The transformers tokenizer, loaded at the first access. Raises ModelError."""
        return load_tokenizer(self._folder)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_folder" not in self.__dict__:  # the object is being copied
            raise AttributeError(name)
        return getattr(self.transformers_tokenizer, name)

    def __call__(self, text: str | Sequence[str], **options: Any) -> Any:
        """Returns the token ids of one text or of a list of texts, and on request token offsets."""
        texts = [text] if isinstance(text, str) else list(text)
        strange = not texts or not all(isinstance(part, str) for part in texts)
        if strange or not options.keys() <= _CALL_OPTIONS:
            return self.transformers_tokenizer(text, **options)
        backend, split = self.backend_tokenizer, options.get("split_special_tokens", False)
        with _encoding_lock:
            if backend.encode_special_tokens != split:
                backend.encode_special_tokens = split
            added = options.get("add_special_tokens", True)
            encodings = backend.encode_batch(texts, add_special_tokens=added)
        out = {"input_ids": [encoding.ids for encoding in encodings]}
        if options.get("return_offsets_mapping"):
            out["offset_mapping"] = [encoding.offsets for encoding in encodings]
        return {name: rows[0] for name, rows in out.items()} if isinstance(text, str) else out


# -- Chat templates: a model's own code, which transformers runs in jinja2's sandbox

_MAX_STEPS = 2_000_000
"""The most lines and calls that a chat template may run; compiling 7 kB of it takes 84,000."""
_NO_TEMPLATE = "use another model, or one whose files have no chat template"


@contextmanager
def limit_rendering_steps() -> Iterator[None]:
    """Raises ModelError if chat templates rendered in the block take too many steps."""
    steps = 0

    def limit_template_steps(frame: FrameType, event: str, argument: object) -> Any:
        """A trace function (`sys.settrace`) that counts steps of templates, up to a limit."""
        nonlocal steps
        steps += 1
        if steps > _MAX_STEPS:
            message = f"the model's chat template must end within {_MAX_STEPS:,} steps"
            raise ModelError(message, _NO_TEMPLATE)
        return limit_template_steps if frame.f_code.co_filename == "<template>" else None

    before = sys.gettrace()
    sys.settrace(limit_template_steps)
    try:
        yield
    finally:
        sys.settrace(before)


def _check_chat_template(template: object) -> None:
    """Raises ModelError if a chat template contains powers, such as 9**9**9, which never ends."""
    for part in template.values() if isinstance(template, dict) else [template]:
        with suppress(TemplateError):  # rendering reports a damaged template
            environment = Environment(extensions=["jinja2.ext.loopcontrols"])
            tree = environment.parse(part if isinstance(part, str) else "")
            if tree.find(nodes.Pow) is not None:
                message = "the model's chat template must not use powers (**)"
                raise ModelError(message, _NO_TEMPLATE)


WINDOW = 1 << 18
"""The number of characters in a window, the part of a text that is tokenised at once."""
OVERLAP = 1 << 12
"""The number of characters that two windows share; tokens near the ends of these may differ."""
LONGEST = 1 << 20
"""The largest number of characters in a window, used where smaller windows do not agree."""


class TokenArrays(NamedTuple):
    """The n tokens of a text as `ids`, and the `offsets` (n, 2) of each token's characters."""

    ids: array[int]
    offsets: NDArray[numpy.int32]


def tokenise_text(tokenizer: Any, text: str) -> TokenArrays:
    """Returns the tokens of a document's text; the names of special tokens in the text count as
    plain text. Raises DocumentError: the text cannot be divided into windows of limited length."""
    import numpy

    ids, offsets = array("i"), []
    for rows in tokenise_by_windows(tokenizer, text):
        ids.frombytes(rows[:, 0].tobytes())
        offsets.append(rows[:, 1:].copy())
    return TokenArrays(ids, numpy.concatenate(offsets))


def count_tokens(folder: Path, text: str) -> int:
    """Returns the number of tokens of a text. Raises ModelError, DocumentError."""
    with convert_read_errors(f"the tokenizer in {folder}"):
        return len(tokenise_text(load_fastest_tokenizer(folder), text).ids)


def tokenise_by_windows(tokenizer: Any, text: str) -> Iterator[NDArray[numpy.int32]]:
    """Yields the tokens of a text, tokenised in overlapping parts, as arrays (n, 3) of token id,
    first and end character. Raises DocumentError: windows of `LONGEST` share no token."""
    import numpy

    start, first, length = 0, 0, WINDOW
    rows = _tokenise_window(tokenizer, text, start, length)
    while start + length < len(text):
        end = start + length
        at = int(numpy.searchsorted(rows[:, 1], end - OVERLAP))
        after = int(rows[at, 1]) if at < len(rows) else end
        following = _tokenise_window(tokenizer, text, after, WINDOW)
        cut = _find_token_shared_by_windows(rows, following, after, end, text)
        if cut is None:
            length *= 2
            if length > LONGEST:
                raise DocumentError(
                    f"the document must contain white space or letters, got {LONGEST:,} "
                    f"characters without either from character {start:,} on",
                    "break the document into lines, which the tokenizer can process one by one",
                )
            rows = _tokenise_window(tokenizer, text, start, length)
            continue
        yield rows[first : cut[0]]
        rows, start, first, length = following, after, cut[1], WINDOW
    yield rows[first:]


def _tokenise_window(
    tokenizer: Any, text: str, window_start: int, window_length: int
) -> NDArray[numpy.int32]:
    """Returns the tokens of one window of a text, (n, 3): token id, first and end character."""
    import numpy

    out = tokenizer(
        text[window_start : window_start + window_length], add_special_tokens=False,
        split_special_tokens=True, return_offsets_mapping=True, verbose=False,
    )  # fmt: skip
    rows = numpy.empty((len(out["input_ids"]), 3), dtype=numpy.int32)
    rows[:, 0] = out["input_ids"]
    rows[:, 1:] = numpy.asarray(out["offset_mapping"], dtype=numpy.int32).reshape(-1, 2)
    rows[:, 1:] += window_start
    return rows


def _find_token_shared_by_windows(
    tokens: NDArray[numpy.int32], next_tokens: NDArray[numpy.int32], overlap_start: int,
    overlap_end: int, text: str,
) -> tuple[int, int] | None:  # fmt: skip
    """Returns a token's indices in two overlapping windows, or None if the windows differ there."""
    import numpy

    bounds = (overlap_start + OVERLAP // 4, overlap_end - OVERLAP // 4)
    both = (tokens, next_tokens)
    (low, high), (later, last) = (numpy.searchsorted(one[:, 1], bounds) for one in both)
    shared = tokens[low:high]
    if len(shared) < 2 or not numpy.array_equal(shared, next_tokens[later:last]):
        return None
    middle = (overlap_start + overlap_end) // 2
    for number in numpy.argsort(abs(shared[:, 1] - middle), kind="stable").tolist():
        at = int(shared[number, 1])
        if not text[at - 1 : at + 1].isnumeric():
            return int(low) + number, int(later) + number
    return None
