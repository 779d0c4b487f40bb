"""How a tokenizer cuts text before it merges bytes: llama.cpp names the way by one word.

transformers knows the words of Llama 3, Qwen, GPT-4o and Tekken, and cuts as GPT-2 otherwise, which
is right for some. Here are more of them, as the tokenizer.json of models that use them cuts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from esa_cli.errors import ModelError

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_THREE_DIGITS = f"{_CONTRACTIONS}|{_WORDS}|\\p{{N}}{{1,3}}|{_REST}"
_ONE_DIGIT = f"{_CONTRACTIONS}|{_WORDS}|\\p{{N}}|{_REST}"
_ASCII_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
)
_CASED_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_THREES_FROM_THE_RIGHT = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
_HAN_AND_KANA = "[一-龥぀-ゟ゠-ヿ]+"
_SCRIPTS_WITHOUT_SPACES = (
    "[一-鿿㐀-䶿豈-\ufaff぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-\u0e7f\u0e80-\u0effក-៿က-႟ꩠ-ꩿꧠ-꧿가-\ud7afᄀ-ᇿ]+"
)
_KOREAN_AND_OTHERS = f"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|{_HAN_AND_KANA}"
_PHRASES = (
    r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
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
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b",
         "mellum2"),
        _EACH_DIGIT,
    ),
    **dict.fromkeys(("chatglm-bpe", "glm4", "glm5"), _pieces(_THREE_DIGITS)),
    **dict.fromkeys(("stablelm2", "hunyuan", "grok-2", "solar-open"), _pieces(_ONE_DIGIT)),
    **dict.fromkeys(
        ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"),
        _pieces(r"\p{N}{1,3}", _HAN_AND_KANA, _ASCII_WORDS),
    ),
    "deepseek-llm": _pieces(
        r"[\r\n]", r"\s?[\p{Lu}\p{Ll}\p{Lt}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$",
        "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}+",
    ),
    "deepseek-coder": _pieces(
        r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}"
    ),
    "seed-coder": _pieces(
        f"{_CONTRACTIONS}|{_WORDS}|" r"\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "tiny_aya": _pieces(_THREES_FROM_THE_RIGHT, rf"{_CASED}|\p{{N}}{{1,3}}|{_CASED_REST}"),
    "youtu": _pieces(_KOREAN_AND_OTHERS, rf"{_CASED}|\p{{N}}|{_CASED_REST}"),
    "exaone-moe": _pieces(f"{_CONTRACTIONS}|{_PHRASES}"),
    "afmoe": _pieces(_THREES_FROM_THE_RIGHT, _SCRIPTS_WITHOUT_SPACES, _ASCII_WORDS),
    "minicpm5": _pieces(r"\p{N}{1,3}", rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}+|{_REST}"),
}  # fmt: skip
_BY_TRANSFORMERS = {
    "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
    "jina-v5-nano", "dbrx", "smaug-bpe", "tekken", "qwen2", "deepseek-r1-qwen", "kormo",
    "f2llmv2", "megrez", "qwen35", "gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2",
}  # fmt: skip
_AS_GPT2 = {
    "gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "a.x-4.0",
    "mellum", "modern-bert", "jina-v1-en", "jina-v2-code", "roberta-bpe", "mpt", "olmo",
    "jais", "trillion", "granite-docling", "exaone4",
}  # fmt: skip


def unknown_way(metadata: Mapping[str, Any]) -> str:
    """llama.cpp's word in the metadata of a file whose text is cut as GPT-2's for want of a better
    way; "": the way is known, or the tokenizer cuts nothing."""
    if metadata.get("tokenizer.ggml.model") != "gpt2":
        return ""
    name = str(metadata.get("tokenizer.ggml.pre", "default"))
    return "" if name in _WAYS.keys() | _BY_TRANSFORMERS | _AS_GPT2 else name


def split_as_named(tokenizer_json: Path, name: str | None) -> None:
    """Replaces the pre-tokenizer in tokenizer.json where llama.cpp's `name` needs another.
    Raises ModelError: there is no tokenizer.json."""
    if not tokenizer_json.is_file():
        raise ModelError("the GGUF file's tokenizer cannot be written as tokenizer.json")
    if name in _WAYS:
        content = json.loads(tokenizer_json.read_text("utf-8"))
        content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": _WAYS[name]}
        tokenizer_json.write_text(json.dumps(content, ensure_ascii=False, indent=2), "utf-8")
