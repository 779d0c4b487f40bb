"""Conversion of a GGUF file to a folder that transformers' plain `from_pretrained` loads.

It is done once, since unpacking takes tens of seconds. The weights keep the precision that
quantisation left, in float32, since 16 bits would lose digits of 4-bit weights. The tokenizer is
the one the GGUF file describes. Architectures without an entry in `GGUF_FAMILIES` are refused:
transformers' own reader ignores how most of them scale their rotary embedding.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from esa_cli.errors import EsaError, ModelError, ResourceError, first_line
from esa_cli.models.files.quiet_transformers import quiet_transformers
from esa_cli.models.gguf.gguf_file import GgufFile
from esa_cli.models.gguf.gguf_settings import GGUF_FAMILIES, SAFETENSORS, model_config
from esa_cli.system.progress import StageProgress, silent


def convert(gguf_file: Path, folder: Path, *, progress: StageProgress | None = None) -> None:
    """Writes config.json, generation_config.json, tokenizer files and model.safetensors into an
    existing folder. Takes about as much memory as one file of weights.

    Raises:
        ModelError: not a whole GGUF file, or an architecture or tokenizer not supported.
        ResourceError: not enough memory. OSError: the folder cannot be written.
    """
    report = progress or silent
    report("import", 0, None)
    try:
        with quiet_transformers():
            file = GgufFile(gguf_file)
            report("convert", 0, None)
            check_cutting(file)
            _write_model(file, folder, report)
            _write_tokenizer(file, folder)
    except (EsaError, OSError):
        raise
    except MemoryError as error:
        raise ResourceError(
            f"not enough memory to convert {gguf_file.name}",
            "close other programs, or convert it on a larger machine and copy the folder",
        ) from error
    except Exception as error:
        raise ModelError(
            f"{gguf_file.name} cannot be converted: {first_line(error)}",
            "it may be damaged, or of a kind that is not read from GGUF, see docs/models.md",
        ) from error
    # safetensors makes its files private; a shared ESA_HOME needs them as readable as the others.
    for path in folder.glob("*.safetensors"):
        path.chmod((folder / "config.json").stat().st_mode & 0o777)


def _write_model(file: GgufFile, folder: Path, report: StageProgress) -> None:
    import torch
    from transformers import GenerationConfig

    from esa_cli.models.gguf.gguf_weights import GgufWeights

    family = GGUF_FAMILIES.get(file.architecture)
    if family is None:
        known = ", ".join(GGUF_FAMILIES)
        raise ModelError(
            f"{file.path.name} is of the architecture '{file.architecture}'; from GGUF esa takes "
            f"{known}"[:300],
            SAFETENSORS,
        )
    config = model_config(file, family)
    weights = GgufWeights(file, family, config)
    weights.write(folder, report)
    config.architectures, config.dtype = [weights.architecture], torch.float32
    config.save_pretrained(folder)
    generation: Any = GenerationConfig.from_model_config(config)
    generation.save_pretrained(folder)


def _write_tokenizer(file: GgufFile, folder: Path) -> None:
    """Raises ModelError: the file's tokenizer is of no known kind."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(
        file.path.parent, gguf_file=file.path.name, local_files_only=True
    )
    tokenizer.save_pretrained(folder)
    split_as_named(folder / "tokenizer.json", file.metadata.get("tokenizer.ggml.pre"))


# How a tokenizer cuts text before it merges bytes: llama.cpp names the way by one word.
# transformers knows the words of Llama 3, Qwen, GPT-4o and Tekken, and cuts as GPT-2 otherwise,
# which is right for some.


def _bytes(use_regex: bool) -> dict[str, Any]:
    """Bytes as letters; with `use_regex` cut as GPT-2 does."""
    rule = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {**rule, "use_regex": use_regex}


_EACH_DIGIT = [{"type": "Digits", "individual_digits": True}, _bytes(use_regex=True)]
_THREE_DIGITS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UP_TO_THREE_DIGITS = [
    {"type": "Split", "pattern": {"Regex": _THREE_DIGITS}, "behavior": "Isolated", "invert": False},
    _bytes(use_regex=False),
]
_WAYS: dict[str, list[dict[str, Any]]] = {
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), _EACH_DIGIT),
    **dict.fromkeys(("chatglm-bpe", "glm4"), _UP_TO_THREE_DIGITS),
}
_BY_TRANSFORMERS = {
    "llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "dbrx", "smaug-bpe", "tekken", "qwen2",
    "deepseek-r1-qwen", "gpt-4o", "llama4",
}  # fmt: skip
_AS_GPT2 = {"gpt-2", "phi-2", "olmo", "mpt", "granite-docling"}


def check_cutting(file: GgufFile) -> None:
    """Raises ModelError where the tokenizer cuts text in a way that is not known: the model would
    read other tokens than it was trained on."""
    if file.metadata.get("tokenizer.ggml.model") != "gpt2":
        return
    name = str(file.metadata.get("tokenizer.ggml.pre", "default"))
    if name not in _WAYS.keys() | _BY_TRANSFORMERS | _AS_GPT2:
        message = f"the tokenizer of {file.path.name} cuts text in a way that esa does not know"
        raise ModelError(f"{message}, '{name[:80]}' (tokenizer.ggml.pre)", SAFETENSORS)


def split_as_named(tokenizer_json: Path, name: str | None) -> None:
    """Replaces the pre-tokenizer in tokenizer.json where llama.cpp's `name` needs another.
    Raises ModelError: there is no tokenizer.json."""
    if not tokenizer_json.is_file():
        raise ModelError("the GGUF file's tokenizer cannot be written as tokenizer.json")
    if name in _WAYS:
        content = json.loads(tokenizer_json.read_text("utf-8"))
        content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": _WAYS[name]}
        tokenizer_json.write_text(json.dumps(content, ensure_ascii=False, indent=2), "utf-8")
