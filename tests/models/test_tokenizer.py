"""Tokenizers loaded by the general class, and those that take the place of transformers'."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import properties  # noqa: F401
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import TemplateError
from model_files import TEXTS, change, folder

from esa_cli import models
from esa_cli.models.tokenization import tokenizer as loading
from esa_cli.models.tokenization.tokenizer import (
    StandaloneTokenizer,
    load_standalone_tokenizer,
    load_tokenizer,
)

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


Pair = tuple[Any, StandaloneTokenizer]
"""A tokenizer of transformers, and the one that takes its place."""
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>", "</s>", "<unk>", "<repo_name>"]
PIECES = (
    st.text(max_size=12)
    | st.sampled_from([*SPECIAL, *TEXTS, " ", "\n\n", "▁", "Ġ", "1234567", "\ufffd", "e\u0301"])
    | st.sampled_from(["the", "Where", "aaaa" * 50])
)
TEXT = st.lists(PIECES, max_size=12).map("".join)
NAMES = ["bytes", "spaces"]


def write(folder: Path, made: Any, **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    (folder / "config.json").write_text('{"model_type": "llama"}', "utf-8")
    return folder


def trained(model: Any, trainer: Any, **parts: Any) -> Any:
    from tokenizers import Tokenizer

    made = Tokenizer(model)
    for name, part in parts.items():
        setattr(made, name, part)
    texts = [*TEXTS, "Where was the heron of the lighthouse keeper? The heron was there. "] * 3
    made.train_from_iterator(texts, trainer)
    return made


def spaces() -> Any:
    """As sentencepiece's BPE with bytes, and a first token before each text."""
    from tokenizers import decoders, models, normalizers, processors, trainers

    made = trained(
        models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True),
        trainers.BpeTrainer(
            vocab_size=400, show_progress=False,
            special_tokens=["<unk>", "<s>", "</s>", *[f"<0x{n:02X}>" for n in range(256)]],
        ),
        normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
    )  # fmt: skip
    made.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1),
    ])  # fmt: skip
    made.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A $B", [("<s>", 1)])
    return made


def pair(folder: Path) -> Pair:
    """Both, of a folder, the second one as a later process has it."""
    whole = load_tokenizer(folder)
    plain = load_standalone_tokenizer(folder)
    assert plain is not None
    return whole, plain


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    path = tmp_path_factory.mktemp("tokenizers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ESA_HOME", str(path / "home"))
        spaced = pair(write(path / "spaces", spaces(), bos_token="<s>"))
        return {"spaces": spaced, "bytes": pair(models.fetch_model_folder("random:llama"))}


def compare(both: Pair, texts: list[str]) -> None:
    whole, plain = both
    for special in (False, True):
        for added in (False, True):
            how = {
                "split_special_tokens": special, "add_special_tokens": added,
                "return_offsets_mapping": True, "verbose": False,
            }  # fmt: skip
            for given_text in (texts, *texts):
                want, found = whole(given_text, **how), plain(given_text, **how)
                assert found["input_ids"] == want["input_ids"]
                assert found["offset_mapping"] == want["offset_mapping"]
    assert dict(plain(texts[0])) == {"input_ids": whole(texts[0])["input_ids"]}


@pytest.mark.parametrize("name", NAMES)
@given(texts=st.lists(TEXT, min_size=1, max_size=3))
def test_texts_are_tokenised_as_by_transformers(
    pairs: dict[str, Pair], name: str, texts: list[str]
) -> None:
    compare(pairs[name], texts)


@pytest.mark.model
def test_the_default_model() -> None:
    both = pair(models.fetch_model_folder(models.DEFAULT_MODEL))
    chronicle = Path(__file__).parents[2] / "examples" / "chronicle.md"

    @given(texts=st.lists(TEXT, min_size=1, max_size=3))
    def check(texts: list[str]) -> None:
        compare(both, texts)

    check()
    compare(both, ["", chronicle.read_text("utf-8")])
