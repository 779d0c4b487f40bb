"""Tokenizers that are loaded by the general class are those of `AutoTokenizer`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from model_files import TEXTS, own_home

from esa_cli import models
from esa_cli.models.tokenizer_loading import load_tokenizer

CHAT = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ahab."}]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    own_home(tmp_path, monkeypatch)
    return Path(shutil.copytree(models.resolve("random:llama"), tmp_path / "model"))


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def refuse(*given: object, **options: object) -> None:
    raise AssertionError("AutoTokenizer is used")


@pytest.mark.parametrize("name", ["PreTrainedTokenizerFast", "TokenizersBackend"])
def test_the_same_without_auto(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoTokenizer

    change(folder / "tokenizer_config.json", tokenizer_class=name)
    want = AutoTokenizer.from_pretrained(folder)
    with monkeypatch.context() as patch:
        patch.setattr("transformers.AutoTokenizer.from_pretrained", refuse)
        found = load_tokenizer(folder)
    assert type(found) is type(want)
    for text in [*TEXTS, "<|im_start|>user"]:
        for special in (False, True):
            options = {"split_special_tokens": special, "return_offsets_mapping": True}
            assert dict(found(text, **options)) == dict(want(text, **options))
    for prompt in (False, True):
        text = want.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=prompt)
        made = found.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=prompt)
        assert made == text
    assert found.backend_tokenizer.to_str() == want.backend_tokenizer.to_str()
    assert found.special_tokens_map == want.special_tokens_map
    assert found.bos_token_id == want.bos_token_id


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_others_are_left_to_auto(folder: Path, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = (folder / file).read_text()
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda *given, **more: 1)
    assert load_tokenizer(folder) != 1
    for text in ("{", "[]", "{}", None):
        if text is None:
            (folder / file).unlink()
        else:
            (folder / file).write_text(text)
        assert load_tokenizer(folder) == 1
    (folder / file).write_text(kept)
    change(folder / "config.json", model_type="qwen2")
    assert load_tokenizer(folder) == 1
