"""How a tokenizer cuts text before it merges bytes: llama.cpp names the way by one word.

transformers knows the words of Llama 3, Qwen, GPT-4o and Tekken, and cuts as GPT-2 otherwise, which
is right for some. Here are more of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from esa_cli.errors import ModelError

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_THREE_DIGITS = f"{_CONTRACTIONS}|{_WORDS}|\\p{{N}}{{1,3}}|{_REST}"
_ONE_DIGIT = f"{_CONTRACTIONS}|{_WORDS}|\\p{{N}}|{_REST}"
_DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _pieces(*patterns: str) -> list[dict[str, Any]]:
    """Cuts at what each pattern matches, one after the other; bytes are then as they are."""
    cuts = [
        {"type": "Split", "pattern": {"Regex": one}, "behavior": "Isolated", "invert": False}
        for one in patterns
    ]
    return [*cuts, _bytes(use_regex=False)]


def _bytes(use_regex: bool) -> dict[str, Any]:
    """Bytes as letters; with `use_regex` cut as GPT-2 does."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


_EACH_DIGIT = [{"type": "Digits", "individual_digits": True}, _bytes(use_regex=True)]
_WAYS: dict[str, list[dict[str, Any]]] = {
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"),
        _EACH_DIGIT,
    ),
    **dict.fromkeys(("chatglm-bpe", "glm4"), _pieces(_THREE_DIGITS)),
    **dict.fromkeys(("stablelm2", "hunyuan"), _pieces(_ONE_DIGIT)),
    **dict.fromkeys(
        ("deepseek-v3", "hunyuan-dense"),
        _pieces(r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK),
    ),
}


def split_as_named(tokenizer_json: Path, name: str | None) -> None:
    """Replaces the pre-tokenizer in tokenizer.json where llama.cpp's `name` needs another.
    Raises ModelError: there is no tokenizer.json."""
    if not tokenizer_json.is_file():
        raise ModelError("the GGUF file's tokenizer cannot be written as tokenizer.json")
    if name in _WAYS:
        content = json.loads(tokenizer_json.read_text("utf-8"))
        content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": _WAYS[name]}
        tokenizer_json.write_text(json.dumps(content, ensure_ascii=False, indent=2), "utf-8")
