"""Tiny random ModernBERT weights in the format of sentence-transformers' late interaction models,
written without the package."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import ModernBertConfig, ModernBertModel, PreTrainedTokenizerFast

MODULES = (
    "base.modules.transformer.Transformer",
    "base.modules.dense.Dense",
    "multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask",
    "base.modules.normalize.Normalize",
)
FOLDERS = ("", "1_Dense", "2_MultiVectorMask", "3_Normalize")


def save_tiny_late_interaction_model(folder: Path, dim: int = 6) -> Path:
    """Saves the model and its tokenizer of bytes, whose full stops are not scored."""
    torch.manual_seed(0)
    pieces = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "[Q] ", "[D] "]
    pieces += sorted(pre_tokenizers.ByteLevel.alphabet())
    numbers = {piece: number for number, piece in enumerate(pieces)}
    plain = Tokenizer(models.BPE(numbers, [], unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    ends = [("[CLS]", 1), ("[SEP]", 2)]
    plain.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", unk_token="[UNK]", model_max_length=96,
        additional_special_tokens=["[Q] ", "[D] "],
    ).save_pretrained(folder)  # fmt: skip
    config = ModernBertConfig(
        vocab_size=len(pieces), hidden_size=32, intermediate_size=48, num_hidden_layers=3,
        num_attention_heads=2, max_position_embeddings=96, local_attention=32, pad_token_id=0,
        cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    ModernBertModel(config).save_pretrained(folder)
    keys = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
    dense = {"in_features": 32, "out_features": dim, "bias": False, **keys}
    dense["activation_function"] = "torch.nn.modules.linear.Identity"
    mask = {"skiplist_words": ["."], "skiplist_tasks": ["document"]}
    for name, own in zip(FOLDERS[1:], (dense, mask, keys), strict=True):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(own))
    weight = {"linear.weight": torch.randn(dim, 32)}
    save_file(weight, folder / "1_Dense/model.safetensors")
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.{kind}"}
        for n, (path, kind) in enumerate(zip(FOLDERS, MODULES, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    facts = {"model_type": "MultiVectorEncoder", "prompts": {"query": "[Q] ", "document": "[D] "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(facts))
    return folder
