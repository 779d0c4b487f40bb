"""Tokenizers that are loaded by the general class are those of `AutoTokenizer`."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from model_files import TEXTS, change, folder

from esa_cli import models
from esa_cli.models.tokenization import tokenizer as tokenizer_module
from esa_cli.models.tokenization.tokenizer import (
    PlainTokenizer,
    load_plain_tokenizer,
    load_tokenizer,
    plain_backend,
    read_ahead,
)

__all__ = ["folder"]

CHAT = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ahab."}]


def test_a_chat_template_in_a_file_of_its_own_is_used(folder: Path) -> None:
    """As processors of models that also see images have it."""
    file = folder / "chat_template.json"
    file.write_text(json.dumps({"chat_template": "{{ messages[0]['content'] }}!"}))
    assert load_tokenizer(folder).apply_chat_template(CHAT, tokenize=False)[-1] != "!"
    change(folder / "tokenizer_config.json", chat_template=None)
    assert load_tokenizer(folder).apply_chat_template(CHAT, tokenize=False)[-1] == "!"


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
    other = SimpleNamespace(chat_template=None, is_fast=False)
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda *given, **more: other)
    assert load_tokenizer(folder) is not other
    for text in ("{", "[]", "{}", None):
        if text is None:
            (folder / file).unlink()
        else:
            (folder / file).write_text(text)
        assert load_tokenizer(folder) is other
    (folder / file).write_text(kept)
    change(folder / "config.json", model_type="qwen2")
    assert load_tokenizer(folder) is other


@pytest.mark.parametrize("kind", ["folder", "random"])
def test_what_is_read_ahead_is_read_once(
    folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = models.parse_reference("random:llama" if kind == "random" else str(folder))
    place = models.resolve(ref)
    load_tokenizer(place)
    threads: list[str] = []

    def noted(folder: Path) -> object:
        threads.append(threading.current_thread().name)
        return plain_backend(folder)

    monkeypatch.setattr(tokenizer_module, "plain_backend", noted)
    read_ahead(ref)
    read_ahead(ref)
    first = load_plain_tokenizer(place)
    assert isinstance(first, PlainTokenizer)
    assert first("Who?")["input_ids"] == load_tokenizer(place)("Who?")["input_ids"]
    assert threads == ["esa-tokenizer_0"]
    assert load_plain_tokenizer(place) is not first
    assert len(threads) == 2
