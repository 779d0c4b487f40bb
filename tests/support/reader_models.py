"""Folders of tiny random models whose windows hold a few passages."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from esa_cli.models.files.random_model import write_byte_tokenizer, write_random_model

WINDOW = 8192


def wide_model(folder: Path) -> str:
    """`random:llama` with a larger window, as a model reference."""
    folder.mkdir()
    write_random_model(folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "max_position_embeddings": WINDOW}))
    return str(folder)


def foreign_model(folder: Path, template: str | None = None) -> str:
    """A kind of model that ESA does not support, with this chat template or none."""
    folder.mkdir()
    write_byte_tokenizer(folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    del settings["chat_template"]
    path.write_text(json.dumps(settings | ({"chat_template": template} if template else {})))
    config = GPT2Config(
        vocab_size=259, n_positions=2048, n_embd=16, n_layer=1, n_head=2,
        bos_token_id=256, eos_token_id=258,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        GPT2LMHeadModel(config).save_pretrained(folder)
    return str(folder)
