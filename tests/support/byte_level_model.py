"""A tokenizer of bytes, and a random model of its vocabulary."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import ModelFactory
from transformers import AutoTokenizer

from esa_cli.models.files.random_model import write_byte_tokenizer


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("bytes")
    write_byte_tokenizer(folder)
    (folder / "config.json").write_text('{"model_type": "llama"}', "utf-8")
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def byte_model(make_model: ModelFactory) -> Any:
    return make_model("llama", vocab_size=300)
