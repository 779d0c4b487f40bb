"""Converts a GGUF file to a model folder that transformers' `from_pretrained` loads.

A GGUF file is converted only once, since dequantising takes tens of seconds. Dequantised weights
are stored in float32, or in 16 bits if this loses no precision. esa refuses the architectures
missing from `GGUF_FAMILIES`, for most of which transformers' own GGUF reader ignores the scaling of
rotary embeddings."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from esa_cli.errors import EsaError, ModelError, get_first_line
from esa_cli.models.files import gguf_file
from esa_cli.models.files.gguf_file import GGUF_FAMILIES, SAFETENSORS, GgufFamily, GgufFile
from esa_cli.models.files.quiet_transformers import quiet_transformers
from esa_cli.system.progress import StageProgress


def convert_gguf_file(gguf_path: Path, output_folder: Path, report: StageProgress) -> None:
    """Writes a GGUF file's model as config.json, tokenizer files and safetensors files into an
    existing folder. Raises ModelError: the GGUF file is damaged, or its architecture or tokenizer
    is not supported. OSError: the folder cannot be written. MemoryError."""
    report("import", 0, None)
    try:
        with quiet_transformers():
            file = GgufFile(gguf_path)
            report("convert", 0, None)
            check_gguf_pre_tokenizer(file)
            _write_config_and_weights(file, output_folder, report)
            _write_gguf_tokenizer(file, output_folder)
    except (EsaError, OSError, MemoryError):
        raise
    except Exception as error:
        raise ModelError(
            f"{gguf_path.name} cannot be converted: {get_first_line(error)}",
            "fetch the GGUF file again, or choose another kind that docs/models.md lists",
        ) from error
    # safetensors makes its files private; a shared ESA_HOME needs them as readable as the others.
    for path in output_folder.glob("*.safetensors"):
        path.chmod((output_folder / "config.json").stat().st_mode & 0o777)


def _write_config_and_weights(file: GgufFile, output_folder: Path, report: StageProgress) -> None:
    from transformers import AutoModelForCausalLM, GenerationConfig

    family = GGUF_FAMILIES.get(file.architecture)
    if family is None:
        message = f"{file.path.name} has the architecture '{file.architecture[:80]}'"
        raise ModelError(f"{message}; esa converts only {', '.join(GGUF_FAMILIES)}", SAFETENSORS)
    config = gguf_file.make_config_from_gguf(file, family)
    automatic: Any = AutoModelForCausalLM
    with torch.device("meta"):
        model = automatic.from_config(config)
    model.tie_weights()
    weights = _plan_weight_conversions(file, model)
    _write_safetensors_files(file, family, config, weights, output_folder, report)
    config.architectures, config.dtype = [type(model).__name__], torch.float32
    config.save_pretrained(output_folder)
    generation: Any = GenerationConfig.from_model_config(config)
    generation.save_pretrained(output_folder)


# -- Weights

SHARD_BYTES = 4 << 30
"""The number of weight bytes after which a new safetensors file begins."""
_IN_CONFIG = re.compile(r"rope_(freqs|factors_long|factors_short)(\.weight)?")
_EXACT_TYPES = {torch.bfloat16: {"BF16", "MXFP4"}, torch.float16: {"F16"}}
"""Maps 16-bit types to the GGUF types that they represent exactly; gpt-oss uses MXFP4."""
_OLD_FILE = "convert the model with a newer llama.cpp, or use its safetensors files"
Join = Callable[[Sequence[Tensor]], Tensor]


def _concatenate_tensors(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenates tensors (..., n, m) along the dimension n."""
    return torch.cat(tuple(tensors), -2) if len(tensors) > 1 else tensors[0]


def _interleave_experts(gates_and_values: Sequence[Tensor]) -> Tensor:
    """Interleaves gates and values as gpt-oss' experts need them: two weights (experts, inner,
    hidden) become one (experts, hidden, 2 inner), and two biases become one (experts, 2 inner)."""
    turns = torch.stack(tuple(gates_and_values), 2).flatten(1, 2)
    return turns.transpose(1, 2) if turns.dim() > 2 else turns


_GATE_UP = ("ffn_gate_exps.weight", "ffn_up_exps.weight")
_JOINED: dict[str, tuple[tuple[str, ...], Join]] = {
    "experts.gate_up_proj": (_GATE_UP, _concatenate_tensors),
    "experts.down_proj": (("ffn_down_exps.weight",), _concatenate_tensors),
}
"""Maps the end of a weight's name to GGUF tensors, and to the function that joins them."""
_GPT_OSS: dict[str, tuple[tuple[str, ...], Join]] = {
    "sinks": (("attn_sinks.weight",), _concatenate_tensors),
    "experts.gate_up_proj": (_GATE_UP, _interleave_experts),
    "experts.gate_up_proj_bias": (("ffn_gate_exps.bias", "ffn_up_exps.bias"), _interleave_experts),
    "experts.down_proj": (("ffn_down_exps.weight",), lambda parts: parts[0].mT),
    "experts.down_proj_bias": (("ffn_down_exps.bias",), _concatenate_tensors),
}


class _WeightConversionPlan(NamedTuple):
    """How one weight is made from the tensors of a GGUF file."""

    shape: tuple[int, ...]
    sources: Sequence[str]  # names of the GGUF tensors
    join: Join


def _plan_weight_conversions(file: GgufFile, meta_model: Any) -> dict[str, _WeightConversionPlan]:
    """Raises ModelError if a GGUF tensor is missing, has the wrong size, or is not used."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    config, path = meta_model.config, file.path.name
    known = {name: key for key, name in MODEL_ARCH_NAMES.items()}
    names = get_tensor_name_map(known[file.architecture], config.num_hidden_layers)
    joined = _GPT_OSS if config.model_type == "gpt_oss" else _JOINED
    weights = {}
    for name, weight in meta_model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        base, _, suffix = name.rpartition(".")
        sources: Sequence[str] = [f"{names.get_name(base) or base}.{suffix}"]
        join: Join = _concatenate_tensors
        if end := next((end for end in joined if name.endswith(end)), ""):
            ends, join = joined[end]
            sources = [f"blk.{name.split('.')[2]}.{source}" for source in ends]
        weights[name] = _WeightConversionPlan(tuple(weight.shape), sources, join)
        if lacking := [source for source in sources if source not in file.tensors]:
            kind = config.model_type
            raise ModelError(f"{path} lacks the weights {lacking[0]} of a {kind} model", _OLD_FILE)
        parts = [torch.empty(file.get_tensor_shape(source), device="meta") for source in sources]
        try:
            size = tuple(join(parts).shape)
        except (RuntimeError, IndexError, ValueError):
            size = tuple(parts[0].shape)
        if size != weight.shape:
            shapes = f"must have shape {tuple(weight.shape)}, got {size}"
            raise ModelError(f"{sources[0]} of {path} {shapes}", _OLD_FILE)
    used = {source for weight in weights.values() for source in weight.sources}
    for name in file.tensors.keys() - used:
        if not _IN_CONFIG.fullmatch(name):
            kind = f"a {config.model_type} model of transformers"
            raise ModelError(f"{path} has the weights {name}, which {kind} lacks", SAFETENSORS)
    return weights


def _write_safetensors_files(
    file: GgufFile, family: GgufFamily, config: Any, plans: dict[str, _WeightConversionPlan],
    output_folder: Path, report: StageProgress,
) -> None:  # fmt: skip
    """Writes a model's weights as safetensors files, with one file's weights in memory at once."""
    from safetensors.torch import save_file

    total = sum(4 * math.prod(weight.shape) for weight in plans.values())
    done, written, shard, places = 0, 0, dict[str, Tensor](), dict[str, str]()
    for name, weight in plans.items():
        shard[name] = _make_weight_from_gguf(file, family, config, name, weight)
        done += 4 * math.prod(weight.shape)
        report("convert", done, total)
        if done - written >= SHARD_BYTES or done == total:
            report("save", 0, None)
            path = f"model-{len(set(places.values())) + 1:05d}.safetensors"
            if done == total and not places:
                path = "model.safetensors"
            save_file(shard, output_folder / path, metadata={"format": "pt"})
            places |= dict.fromkeys(shard, path)
            written, shard = done, {}
    if len(set(places.values())) > 1:
        text = json.dumps({"metadata": {}, "weight_map": places}, indent=2) + "\n"
        (output_folder / "model.safetensors.index.json").write_text(text, "utf-8")


def _make_weight_from_gguf(
    file: GgufFile, family: GgufFamily, config: Any, weight_name: str, plan: _WeightConversionPlan
) -> Tensor:
    """Makes one weight from a GGUF file's tensors, in 16 bits if this loses no precision."""
    made = plan.join([torch.from_numpy(file.read_float_tensor(one).copy()) for one in plan.sources])
    if family.adjacent_pairs and (match := re.search(r"\.self_attn\.([qk])_proj\.", weight_name)):
        query = match[1] == "q"
        heads = config.num_attention_heads if query else config.num_key_value_heads
        pairs = made.reshape(heads, -1, 2, *made.shape[1:])
        made = pairs.transpose(1, 2).reshape(made.shape)
    if family.raised_norms and weight_name.endswith("norm.weight"):
        made = made - 1
    types = {file.tensors[source].tensor_type.name for source in plan.sources}
    for dtype, names in _EXACT_TYPES.items():
        if types <= names and torch.equal(made.to(dtype).float(), made):
            made = made.to(dtype)
    return made.contiguous()


# -- The tokenizer
# llama.cpp has a name for each way in which a tokenizer splits text before it merges bytes.
# transformers knows the names of Llama 3, Qwen, GPT-4o and Tekken. For every other name it splits
# as GPT-2 does, which is right for some models.

_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
_THREE_DIGITS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UP_TO_THREE_DIGITS = [
    {"type": "Split", "pattern": {"Regex": _THREE_DIGITS}, "behavior": "Isolated", "invert": False},
    _BYTES,
]
_EACH_DIGIT = [{"type": "Digits", "individual_digits": True}, _BYTES | {"use_regex": True}]
_PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), _EACH_DIGIT),
    **dict.fromkeys(("chatglm-bpe", "glm4"), _UP_TO_THREE_DIGITS),
}
_BY_TRANSFORMERS = {
    "llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "dbrx", "smaug-bpe", "tekken", "qwen2",
    "deepseek-r1-qwen", "gpt-4o", "llama4",
}  # fmt: skip
_AS_GPT2 = {"gpt-2", "phi-2", "olmo", "mpt", "granite-docling"}


def check_gguf_pre_tokenizer(file: GgufFile) -> None:
    """Raises ModelError if a GGUF file's tokenizer splits text in a way that esa does not know."""
    if file.metadata.get("tokenizer.ggml.model") != "gpt2":
        return
    name = str(file.metadata.get("tokenizer.ggml.pre", "default"))
    if name not in _PRE_TOKENIZERS.keys() | _BY_TRANSFORMERS | _AS_GPT2:
        message = f"the tokenizer of {file.path.name} splits text in a way that esa does not know"
        raise ModelError(f"{message}, '{name[:80]}' (tokenizer.ggml.pre)", SAFETENSORS)


def _write_gguf_tokenizer(file: GgufFile, output_folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(
        file.path.parent, gguf_file=file.path.name, local_files_only=True
    )
    tokenizer.save_pretrained(output_folder)
    tokenizer_json, name = output_folder / "tokenizer.json", file.metadata.get("tokenizer.ggml.pre")
    if not tokenizer_json.is_file():
        message = "the GGUF file's tokenizer cannot be converted to a tokenizer.json"
        raise ModelError(message, SAFETENSORS)
    if name in _PRE_TOKENIZERS:
        content = json.loads(tokenizer_json.read_text("utf-8"))
        content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": _PRE_TOKENIZERS[name]}
        tokenizer_json.write_text(json.dumps(content, ensure_ascii=False, indent=2), "utf-8")
