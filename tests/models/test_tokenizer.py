"""Tokenizers loaded by the general class, and those that take the place of transformers'."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError
from model_files import change, folder

from esa_cli.models.tokenization import tokenizer as loading

__all__ = ["folder"]

CHAT = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ahab."}]
TEMPLATES = {
    "blocks": "{% for m in messages %}\n  {% if m.role == 'user' %}\n{{ m.content }}\n"
    "  {% endif %}\n{% endfor %}\n{{ bos_token }}{{ eos_token }}\n",
    "json": "{{ messages | tojson }}{{ messages | tojson(indent=2) }}{{ '<é>' | tojson }}",
    "namespace": "{% set ns = namespace(n=0, self=1) %}{% for m in messages %}"
    "{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}{{ dict(a=1).a }}",
    "loops": "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}x{% endfor %}",
    "unknown": "{{ tools is none }}{{ documents is none }}{{ other is defined }}{{ date_string }}",
    "time": "{{ strftime_now is defined }}{{ enable_thinking }}{{ add_generation_prompt }}",
    "tracked": "{% generation %}{{ messages[0].content }}{% endgeneration %}",
    "keys": "{{ dict.fromkeys(['a'], 1) }}",
}
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
    templates = folder / "additional_chat_templates"
    templates.mkdir()
    (templates / "rag.jinja").write_text("{{ documents }}")
    assert not is_plain(folder), "it has several templates"


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_templates(folder: Path, name: str) -> None:
    change(folder / "tokenizer_config.json", chat_template=TEMPLATES[name])
    assert is_plain(folder)
    whole, plain = loading.load_tokenizer(folder), loading.load_standalone_tokenizer(folder)
    assert plain is not None
    for prompt in (False, True):
        how: dict[str, Any] = {"enable_thinking": prompt, "date_string": "now"}
        how |= {"tokenize": False, "add_generation_prompt": prompt}
        want = whole.apply_chat_template(CHAT, **how)
        assert plain.apply_chat_template(CHAT, **how) == want
    assert ("transformers_tokenizer" in vars(plain)) == (name in ("tracked", "keys"))


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_templates_that_transformers_refuses(folder: Path, name: str) -> None:
    change(folder / "tokenizer_config.json", chat_template=REFUSED[name])
    plain = loading.load_standalone_tokenizer(folder) if is_plain(folder) else None
    assert plain is not None
    with pytest.raises(TemplateError) as want:
        loading.load_tokenizer(folder).apply_chat_template(CHAT, tokenize=False)
    with pytest.raises(TemplateError) as found:
        plain.apply_chat_template(CHAT, tokenize=False)
    assert str(found.value) == str(want.value)
    with pytest.raises(TemplateError):
        loading.render_chat(REFUSED[name], {"messages": CHAT})


def test_threads_do_not_change_each_others_settings(folder: Path) -> None:
    """A special token in a document is text, whatever another thread encodes."""
    loading.load_tokenizer(folder)
    plain = loading.load_standalone_tokenizer(folder)
    assert plain is not None
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
