"""Settings of multi-head latent attention and of its models' experts, from a GGUF file.

llama.cpp attends to latents as to one key head, and has that head's sizes as those of keys and
values; the sizes that transformers wants have names of their own. Files from before have the sizes
of heads instead.
"""

from __future__ import annotations

from typing import Any

from esa_cli.errors import ModelError
from esa_cli.models.gguf.gguf_file import GgufFile
from esa_cli.models.gguf.gguf_rotary import refused

_SIGMOID = 2
"""llama.cpp's number of it among the functions that make weights of experts."""


def by_sigmoid(file: GgufFile) -> bool:
    """Whether experts are chosen by sigmoids with a bias, as in DeepSeek-V3, and not by a softmax,
    as in V2. Of models without experts it says so, too: V3 may have none."""
    experts = file.metadata.get(f"{file.architecture}.expert_count")
    function = file.metadata.get(f"{file.architecture}.expert_gating_func")
    biased = any(name.endswith("exp_probs_b.bias") for name in file.tensors)
    return not experts or function == _SIGMOID or (function is None and biased)


def latent_settings(file: GgufFile, kind: str, found: dict[str, Any]) -> dict[str, Any]:
    """The sizes of a head's parts, and how V2 chooses experts.

    Args:
        kind: `model_type`. found: settings known so far.

    Raises:
        ModelError: a size is missing, or transformers' model has not what the file wants.
    """

    def get(name: str) -> Any:
        return file.metadata.get(f"{file.architecture}.{name}")

    heads = found["num_attention_heads"]
    rotating = get("rope.dimension_count")
    keys = get("attention.key_length_mla") or get("attention.key_length")
    values = get("attention.value_length_mla") or get("attention.value_length")
    if not rotating or not keys:
        raise ModelError(
            f"{file.path.name} lacks the sizes of latent attention",
            "convert the model again with a newer llama.cpp",
        )
    if get("attention.temperature_scale"):
        raise refused(file, "queries", "scaled by position")
    sizes = {
        "num_key_value_heads": heads,
        "qk_rope_head_dim": rotating,
        "qk_nope_head_dim": keys - rotating,
        "v_head_dim": values or found["hidden_size"] // heads,
    }
    if kind != "deepseek_v2":
        return sizes
    if found["norm_topk_prob"]:
        raise refused(file, "experts", "chosen by a softmax, with weights that add up to one")
    groups = "group_limited_greedy" if found["n_group"] > 1 else "greedy"
    return {**sizes, "topk_method": groups}
