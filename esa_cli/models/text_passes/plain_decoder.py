"""A decoder's weights on the processor, in modules named as transformers' are, without its code.

The modules hold weights, which `FusedForward` computes with and `LoraAdapter` finds by name; they
are not called, but for the norm, the rotary embedding, the embedding and the head. Importing
transformers' own modules takes longer than answering a question.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from esa_cli.models.files.checkpoint_files import weight_files
from esa_cli.models.text_passes.fused_forward import FAMILIES, MOST_BYTES, OTHER_RULES

ROPE = {"rope_type", "rope_theta"}
"""All settings of a rotary embedding that is computed here."""


class PlainConfig(SimpleNamespace):
    """A model's settings, as transformers completes those of config.json."""

    def to_dict(self) -> dict[str, Any]:
        """The settings by name."""
        return dict(vars(self))


def is_plain(settings: Mapping[str, Any]) -> bool:
    """Whether a model with these settings, of `PlainConfig`, can be a `PlainDecoder`."""
    rope = settings.get("rope_parameters") or {}
    return (
        settings.get("model_type") in FAMILIES
        and settings.get("hidden_act") == "silu"
        and not settings.get("mlp_bias")
        and all(settings.get(name) is None for name in (*OTHER_RULES, "quantization_config"))
        and set(settings.get("layer_types") or ["full_attention"]) == {"full_attention"}
        and set(rope) == ROPE
        and rope["rope_type"] == "default"
    )


class PlainDecoder(nn.Module):
    """The modules of a causal language model, with parameters in transformers' order.

    Args:
        config: for which `is_plain` holds. The weights are on the device `meta` until `load`.
    """

    def __init__(self, config: PlainConfig) -> None:
        super().__init__()
        self.config = config
        size, words = config.hidden_size, config.vocab_size
        self.model = nn.ModuleDict({
            # The class itself would draw numbers, by code of torch that takes a second to import.
            "embed_tokens": nn.Embedding.from_pretrained(  # type: ignore[no-untyped-call]
                torch.empty(words, size, device="meta")
            ),
            "layers": nn.ModuleList(_layer(config) for _ in range(config.num_hidden_layers)),
            "norm": PlainNorm(size, config.rms_norm_eps),
            "rotary_emb": UnscaledRotary(head_size(config), config.rope_parameters["rope_theta"]),
        })  # fmt: skip
        self.lm_head = nn.Linear(size, words, bias=False, device="meta")
        self.requires_grad_(False)
        self._tie()

    def _tie(self) -> None:
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.base_model.embed_tokens.weight

    @classmethod
    def load(
        cls, folder: Path, settings: Mapping[str, Any], dtype: torch.dtype
    ) -> PlainDecoder | None:
        """The decoder with a folder's weights; None: it is too large to be fused, or the files do
        not have exactly its weights.

        Args:
            settings: of `PlainConfig`.
        """
        model = cls(PlainConfig(**settings))
        numbers = sum(one.numel() for one in model.base_model.layers.parameters())
        if numbers * dtype.itemsize > MOST_BYTES:
            return None
        weights: dict[str, Tensor] = {}
        try:
            for path in weight_files(folder):
                with safe_open(path, "pt") as file:
                    for name in file.keys():  # noqa: SIM118
                        weights[name] = file.get_tensor(name).to(dtype)
        except (OSError, SafetensorError):
            return None
        wanted = {name: one.shape for name, one in model.named_parameters()}
        if wanted != {name: one.shape for name, one in weights.items()}:
            return None
        model.load_state_dict(weights, strict=False, assign=True)
        model._tie()
        return model.eval()

    @property
    def base_model(self) -> Any:
        """Everything but the head."""
        return self.model

    @property
    def device(self) -> torch.device:
        """Of the weights."""
        return self.lm_head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self.lm_head.weight.dtype


class PlainNorm(nn.Module):
    """The RMS norm of hidden states (..., hidden), in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.empty(size, device="meta")), eps

    def forward(self, x: Tensor) -> Tensor:
        """As transformers rounds: the weight is multiplied in the type of `x`."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class UnscaledRotary(nn.Module):
    """Cosines and sines (B, T, D) of positions (B, T), for rotary embeddings without scaling."""

    def __init__(self, size: int, theta: float) -> None:
        super().__init__()
        rates = 1.0 / theta ** (torch.arange(0, size, 2, dtype=torch.float) / size)
        self.register_buffer("inv_freq", rates, persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """In the type of `x`, from angles in float32."""
        angles = positions[..., None].float() * self.get_buffer("inv_freq")
        angles = torch.cat((angles, angles), -1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def head_size(config: Any) -> int:
    """D, the numbers of one head."""
    return int(getattr(config, "head_dim", 0) or config.hidden_size // config.num_attention_heads)


def _layer(config: Any) -> nn.Module:
    """The modules of one layer; which projections have a bias is the family's rule."""
    size, wide, own = config.hidden_size, config.intermediate_size, head_size(config)
    heads, groups = config.num_attention_heads * own, config.num_key_value_heads * own
    bias = config.model_type in ("llama", "qwen3") and config.attention_bias
    inner = bias or config.model_type == "qwen2"
    attention: dict[str, nn.Module] = {
        "q_proj": nn.Linear(size, heads, bias=inner, device="meta"),
        "k_proj": nn.Linear(size, groups, bias=inner, device="meta"),
        "v_proj": nn.Linear(size, groups, bias=inner, device="meta"),
        "o_proj": nn.Linear(heads, size, bias=bias, device="meta"),
    }
    if config.model_type == "qwen3":
        attention |= {name: PlainNorm(own, config.rms_norm_eps) for name in ("q_norm", "k_norm")}
    mlp = {
        "gate_proj": nn.Linear(size, wide, bias=False, device="meta"),
        "up_proj": nn.Linear(size, wide, bias=False, device="meta"),
        "down_proj": nn.Linear(wide, size, bias=False, device="meta"),
    }
    return nn.ModuleDict({
        "self_attn": nn.ModuleDict(attention),
        "mlp": nn.ModuleDict(mlp),
        "input_layernorm": PlainNorm(size, config.rms_norm_eps),
        "post_attention_layernorm": PlainNorm(size, config.rms_norm_eps),
    })  # fmt: skip
