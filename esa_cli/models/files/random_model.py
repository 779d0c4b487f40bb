"""Writes `random:llama`, a tiny Llama with seeded random weights, for trying esa without a network.

The random Llama is the same on every machine, and gives meaningless answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from esa_cli.models.files.quiet_transformers import quiet_transformers

SEED = 0
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SIZES: dict[str, Any] = {
    "vocab_size": 256 + len(SPECIAL), "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 512, "bos_token_id": 256, "eos_token_id": 258, "pad_token_id": 256,
}  # fmt: skip


def write_random_model(folder: Path) -> None:
    """Writes a tiny Llama with random weights into a folder."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    write_byte_tokenizer(folder)
    # The seed must not reach the caller's random numbers.
    with torch.random.fork_rng(devices=[]), quiet_transformers():
        torch.manual_seed(SEED)
        LlamaForCausalLM(LlamaConfig(**_SIZES)).save_pretrained(folder)


def write_byte_tokenizer(folder: Path) -> None:
    """Writes a tokenizer of the 256 bytes and three special tokens into a folder."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIAL[0],
        "eos_token": SPECIAL[2], "pad_token": SPECIAL[0], "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
