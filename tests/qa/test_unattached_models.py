"""Models that ESA's methods cannot run in, from a folder to an answer: tiny random ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from esa_cli import models
from esa_cli.__main__ import main
from esa_cli.errors import ModelError, PresetError
from esa_cli.models.files.random_model import write_tokenizer
from esa_cli.models.loading.text_part import language_settings
from esa_cli.qa.api import Esa
from esa_cli.qa.planning.preset_check import check_sizes
from esa_cli.qa.preset import load as load_preset
from esa_cli.qa.resolved_preset import resolve
from esa_cli.storage.library import Library

IDS = {"bos_token_id": 256, "eos_token_id": 258, "pad_token_id": 256}
SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 259, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512},
    "falcon": {
        "vocab_size": 259,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 512,
    },
}
TEXT = "The gate opens at nine. Ann Brown lit the harbour lamp.\n\nThe cat slept on the mat."
QUESTION = "Who lit the harbour lamp?"
BY_WORDS = ["answer.from=text"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from transformers import AutoConfig, AutoModelForCausalLM

    out = {}
    for kind, sizes in SIZES.items():
        out[kind] = tmp_path_factory.mktemp(kind)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            config = AutoConfig.for_model(kind, **sizes, **IDS)
            model: Any = AutoModelForCausalLM.from_config(config)
        model.save_pretrained(out[kind])
        write_tokenizer(out[kind])
    return out


@pytest.fixture(params=SIZES)
def folder(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Path:
    return folders[request.param]


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESA_HOME", str(tmp_path / "home"))


def test_quoted_and_free_answers(folder: Path, book: Path) -> None:
    settings = [f"model={folder}", *BY_WORDS]
    with Esa.load("tiny-random", settings, library=Library(), device="cpu") as esa:
        found = esa.ingest(str(book))
        reply = esa.ask(QUESTION, [found])
        assert (reply.answered_from, reply.read) == ("text", False)
        assert "lamp" in reply.evidence[0].text
        assert esa.ask("Describe the harbour.", [found], max_new_tokens=3).answer_tokens <= 3
        calls: list[int] = []
        with esa.interruptible(lambda: calls.append(1)):
            esa.ask(QUESTION, [found])
        assert calls
        with pytest.raises(ModelError, match="not supported"):
            esa.session  # noqa: B018


def test_what_needs_a_method_is_refused(folder: Path) -> None:
    for settings in ([], [*BY_WORDS, "answer.votes=0.5"]):
        with pytest.raises(ModelError, match="not supported") as caught:
            Esa.load("tiny-random", [f"model={folder}", *settings], device="cpu")
        assert caught.value.hint.index("--set answer.from=text") < caught.value.hint.index("llama")


def test_asked_from_the_command_line(
    folder: Path, book: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["ask", str(book), QUESTION, "--preset", "tiny-random", "--model", str(folder)]
    assert main(asked) == 5
    told = capsys.readouterr().err
    assert "are not supported" in told
    assert "--set answer.from=text" in told
    assert main([*asked, "--set", "answer.from=text"]) == 0
    out = capsys.readouterr()
    assert "lamp" in out.out + out.err
    assert out.err.count("found by words alone, as methods cannot run in it: models of type") == 1


def test_keeping_rows_and_comparing_methods_are_refused(
    folder: Path, book: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--preset", "tiny-random", "--model", str(folder), "--set", "answer.from=text"]
    for command in (["ingest", str(book)], ["compare", str(book), QUESTION]):
        assert main([*command, *given]) == 5
        assert "are not supported" in capsys.readouterr().err


def test_memory_is_planned_by_the_models_own_sizes(folder: Path) -> None:
    config = language_settings(folder)
    assert (config["num_hidden_layers"], config["hidden_size"]) == (2, 32)
    assert config["max_position_embeddings"] == 512
    chosen = load_preset("tiny-random", BY_WORDS)
    memory = check_sizes(resolve(chosen), config, "a model")
    weights = sum(one.numel() for one in _weights(folder))
    assert memory.reads == "nothing"
    assert 0.5 < memory.weights / 2 / weights < 1.6
    with pytest.raises(PresetError, match="must be of a supported family"):
        check_sizes(resolve(load_preset("tiny-random")), config, "a model")


def _weights(folder: Path) -> Any:
    return models.load(str(folder), device="cpu", dtype="float32").model.parameters()
