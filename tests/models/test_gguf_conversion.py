"""Conversion of a tiny GGUF file: what is written, loaded, refused and left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from model_files import TEXTS, home, left_in, tiny_gguf, write_gguf
from tokenizers import Tokenizer
from tokenizers.models import BPE

from esa_cli import models
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.errors import ModelError
from esa_cli.models.files.resolve import cutting_note
from esa_cli.models.gguf.gguf_conversion import split_as_named, unknown_way
from esa_cli.qa.opening import ModelPlace, inspect_model
from esa_cli.qa.presets.preset import load as load_preset

__all__ = ["home", "tiny_gguf"]


def test_gguf_converts_and_loads(tiny_gguf: Path, home: Path) -> None:
    stages: dict[str, tuple[int, int | None]] = {}
    loaded = models.load(
        str(tiny_gguf),
        device="cpu",
        dtype="float32",
        progress=lambda stage, done, total: stages.update({stage: (done, total)}),
    )
    assert list(stages) == ["import", "convert", "save", "load"]
    numbers = sum(one.numel() for one in loaded.model.parameters())
    assert stages["convert"] == (4 * numbers, 4 * numbers)
    assert loaded.dtype == torch.float32
    assert loaded.device.type == "cpu"
    assert not loaded.model.training
    assert loaded.tokenizer.chat_template == "{{ messages[0]['content'] }}"
    assert not hasattr(loaded.model.config, "quantization_config")
    assert sorted(p.name for p in loaded.folder.iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "esa.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    for text in TEXTS:
        ids = loaded.tokenizer(text).input_ids
        assert loaded.tokenizer.decode(ids) == text
    assert loaded.tokenizer.tokenize("19he") == ["1", "9", "he"]
    ids = torch.tensor([loaded.tokenizer("hello 19").input_ids])
    assert loaded.model(ids).logits.isfinite().all()
    assert models.path_of(str(tiny_gguf)) == loaded.folder
    listed = models.list_models()
    assert [(m.ref, m.kind) for m in listed] == [(str(tiny_gguf), "prepared")]
    assert models.path_of(listed[0].name) == loaded.folder
    assert models.remove(listed[0].name) >= listed[0].size
    assert models.path_of(str(tiny_gguf)) is None
    assert left_in(home) == []
    with pytest.raises(ModelError):
        models.remove(str(tiny_gguf))


@pytest.mark.parametrize(
    ("name", "pieces"),
    [("refact", "It 's Ġ 1 9 8 4 he ĠÃ©te Ìģ."), ("glm4", "It 's Ġ 198 4 he ĠÃ©te Ìģ.")],
)
def test_text_is_cut_as_the_file_names_it(name: str, pieces: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    Tokenizer(BPE({}, [])).save(str(path))
    split_as_named(path, name)
    cut = Tokenizer.from_file(str(path)).pre_tokenizer.pre_tokenize_str(
        "It's 1984he ét\u0065\u0301."
    )
    assert " ".join(piece for piece, _ in cut) == pieces


@pytest.mark.parametrize("name", ["smollm", "llama-bpe", "olmo", "gpt-2", "tekken"])
def test_nothing_is_said_of_a_known_way_to_cut(name: str) -> None:
    assert unknown_way({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": name}) == ""
    assert unknown_way({"tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "default"}) == ""
    assert unknown_way({"tokenizer.ggml.model": "gpt2"}) == "default"


def test_an_unknown_way_to_cut_is_said(
    tmp_path: Path, tiny_gguf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cutting_note(models.pull(str(tiny_gguf))) == ""
    path = write_gguf(tmp_path / "other.gguf", pre="a-new-way")
    folder = models.pull(str(path))
    assert "way to cut text, 'a-new-way'" in cutting_note(folder)
    assert models.pull(str(path)) == folder
    chosen = load_preset(overrides=[f"model={path}", "answer.from=rows"])
    inspect_model(chosen, ModelPlace("cpu", torch.float32), Reporter(quiet=True), attaches=False)
    assert capsys.readouterr().err.count("a-new-way") == 1


@pytest.mark.parametrize("keep", [2, 20, 400, 20000])
def test_broken_gguf(tmp_path: Path, tiny_gguf: Path, home: Path, keep: int) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny_gguf.read_bytes()[:keep])
    with pytest.raises(ModelError):
        models.pull(str(path))
    assert left_in(home) == []


@pytest.mark.parametrize("stage", ["convert", "save"])
def test_interrupted_conversion_leaves_nothing(tiny_gguf: Path, home: Path, stage: str) -> None:
    def interrupt(now: str, done: int, total: int | None) -> None:
        if now == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        models.pull(str(tiny_gguf), progress=interrupt)
    assert left_in(home) == []
    assert models.path_of(str(tiny_gguf)) is None
