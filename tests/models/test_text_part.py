"""The language model inside a checkpoint that also has other parts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from model_files import byte_letters, home
from test_packed_files import change_weights

from esa_cli import models
from esa_cli.errors import ModelError
from esa_cli.models.files.checkpoint_files import compute_weight_bytes
from esa_cli.models.loading.load import check_esa_supports_model

__all__ = ["home"]

SIZES: dict[str, Any] = {
    "vocab_size": 256, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
VISION: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "image_size": 28, "patch_size": 14,
}  # fmt: skip
WINDOWED = {
    "model_type": "gemma3_text", **SIZES, "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 12,
}  # fmt: skip
PLACES = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
QWEN_VISION = {
    **VISION, "depth": 1, "num_heads": 2, "out_hidden_size": 48, "deepstack_visual_indexes": [0]
}  # fmt: skip
CLIP = {"model_type": "clip_vision_model", **VISION}
WHOLE: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # name: class, settings of the language model, of the other part, of the whole
    "gemma3": (
        "Gemma3", WINDOWED, {"model_type": "siglip_vision_model", **VISION},
        {"mm_tokens_per_image": 4},
    ),
    "mistral3": (
        "Mistral3", {"model_type": "mistral", **SIZES, "sliding_window": None},
        {"model_type": "pixtral", **VISION}, {},
    ),
    "llava": ("Llava", {"model_type": "llama", **SIZES}, CLIP, {}),
    "internvl": (
        "InternVL", {"model_type": "qwen2", **SIZES, "tie_word_embeddings": True},
        {**VISION, "image_size": [28, 28], "patch_size": [14, 14]}, {},
    ),
    "qwen3_vl": (
        "Qwen3VL",
        {"model_type": "qwen3_vl_text", **SIZES, "head_dim": 8, "rope_parameters": PLACES},
        QWEN_VISION, {},
    ),
}  # fmt: skip


def whole_model(kind: str) -> Any:
    import torch
    import transformers

    name, text, vision, more = WHOLE[kind]
    config = getattr(transformers, f"{name}Config")
    model = getattr(transformers, f"{name}ForConditionalGeneration")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return model(config(text_config=dict(text), vision_config=dict(vision), **more))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(BPE({c: i for i, c in enumerate(byte_letters())}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    folder = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(folder)
    return folder


@pytest.fixture
def save(tokenizer: Path, tmp_path: Path) -> Callable[[str], tuple[Path, Any]]:
    """Saves a model with its tokenizer."""

    def saved(kind: str) -> tuple[Path, Any]:
        folder, model = tmp_path / kind, whole_model(kind).eval()
        model.save_pretrained(folder)
        shutil.copytree(tokenizer, folder, dirs_exist_ok=True)
        return folder, model

    return saved


def logits(model: Any) -> Any:
    import torch

    with torch.inference_mode():
        return model(input_ids=torch.arange(3, 33)[None], use_cache=False).logits.float()


def check_equal(folder: Path, model: Any) -> Any:
    import torch

    loaded = models.load(str(folder), device="cpu", dtype="float32").model
    assert type(loaded).__name__.endswith("ForCausalLM")
    assert not any("vision" in name for name, _ in loaded.named_modules())
    assert torch.equal(logits(loaded), logits(model))
    return loaded


@pytest.mark.parametrize("kind", WHOLE)
def test_logits_are_those_of_the_whole(kind: str, save: Callable[[str], tuple[Path, Any]]) -> None:
    folder, model = save(kind)
    check_esa_supports_model(folder)
    loaded = check_equal(folder, model)
    own = {one.data_ptr(): one.numel() for one in loaded.state_dict().values()}  # some are tied
    assert compute_weight_bytes(folder, 4) == 4 * sum(own.values())


@pytest.mark.parametrize("part", ["layers.1.mlp.up_proj", "lm_head", "embed_tokens"])
def test_missing_weights_are_refused(part: str, save: Callable[[str], tuple[Path, Any]]) -> None:
    folder, _ = save("llava")
    change_weights(folder, lambda all: [all.pop(name) for name in [*all] if part in name])
    with pytest.raises(ModelError, match=part):
        models.load(str(folder), device="cpu", dtype="float32")
