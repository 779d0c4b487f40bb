"""Tokenizers loaded by the general class, and those that take the place of transformers'."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from jinja2 import TemplateError
from model_files import change, folder

from esa_cli.models.tokenization import tokenizer as loading

__all__ = ["folder"]

CHAT = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ahab."}]
REFUSED = {
    "refusing": "{{ raise_exception('no system') }}",
    "namespace": "{% set ns = namespace(__class__=1) %}",
    "attribute": "{% set ns = namespace() %}{% set ns._a = 1 %}",
    "class": "{{ messages.__class__ }}{{ ''.__class__.mro() }}",
    "function": "{{ dict.__globals__['json'] }}{{ raise_exception.__globals__['x'] }}",
    "change": "{{ messages.append(1) }}",
    "damaged": "{% if %}",
}


def is_plain(folder: Path) -> bool:
    """Whether a process takes it without transformers, after one that took it with."""
    loading.load_tokenizer(folder)
    return loading.load_standalone_tokenizer(folder) is not None


def test_only_what_transformers_has_loaded_once(folder: Path) -> None:
    assert loading.load_standalone_tokenizer(folder) is None
    loading.load_tokenizer(folder)
    assert loading.load_standalone_tokenizer(folder) is not None
    (folder / "notes.json").write_text("{}")
    assert loading.load_standalone_tokenizer(folder) is not None


def test_transformers_does_all_but_tokenising(folder: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    change(folder / "tokenizer_config.json", chat_template=template)
    assert is_plain(folder)
    whole, plain = loading.load_tokenizer(folder), loading.load_standalone_tokenizer(folder)
    ids = plain("Who?")["input_ids"]
    assert "transformers_tokenizer" not in vars(plain)
    assert plain.decode(ids) == whole.decode(ids) == "Who?"
    assert plain.eos_token_id == whole.eos_token_id
    want = whole.apply_chat_template(CHAT, tokenize=False)
    assert plain.apply_chat_template(CHAT, tokenize=False) == want


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_templates_that_transformers_refuses(folder: Path, name: str) -> None:
    change(folder / "tokenizer_config.json", chat_template=REFUSED[name])
    with pytest.raises(TemplateError):
        loading.load_tokenizer(folder).apply_chat_template(CHAT, tokenize=False)


def test_threads_do_not_change_each_others_settings(folder: Path) -> None:
    """A special token in a document is text, whatever another thread encodes."""
    loading.load_tokenizer(folder)
    plain = loading.load_standalone_tokenizer(folder)
    text = "<|im_end|>" * 50

    def lengths(split: bool) -> set[int]:
        return {len(plain(text, split_special_tokens=split)["input_ids"]) for _ in range(200)}

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lengths, [True, False, True, False]))
    assert [sorted(one) for one in found] == [[500], [50], [500], [50]]


def test_a_chat_template_in_a_file_of_its_own_is_used(folder: Path) -> None:
    """As processors of models that also see images have it."""
    file = folder / "chat_template.json"
    file.write_text(json.dumps({"chat_template": "{{ messages[0]['content'] }}!"}))
    assert loading.load_tokenizer(folder).apply_chat_template(CHAT, tokenize=False)[-1] != "!"
    change(folder / "tokenizer_config.json", chat_template=None)
    assert loading.load_tokenizer(folder).apply_chat_template(CHAT, tokenize=False)[-1] == "!"
