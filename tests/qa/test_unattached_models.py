"""Models that ESA's methods cannot run in, from a folder to an answer: tiny random ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from esa_cli.__main__ import main
from esa_cli.errors import ModelError
from esa_cli.models.files.random_model import write_byte_tokenizer
from esa_cli.qa.api import Esa
from esa_cli.storage.library import Library

IDS = {"bos_token_id": 256, "eos_token_id": 258, "pad_token_id": 256}
TEXT = "The gate opens at nine. Ann Brown lit the harbour lamp.\n\nThe cat slept on the mat."
QUESTION = "Who lit the harbour lamp?"
BY_WORDS = ["answer.from=text"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import AutoConfig, AutoModelForCausalLM

    folder, sizes = tmp_path_factory.mktemp("gpt2"), {"n_embd": 32, "n_layer": 2, "n_head": 4}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        config = AutoConfig.for_model("gpt2", vocab_size=259, n_positions=512, **sizes, **IDS)
        model: Any = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    write_byte_tokenizer(folder)
    return folder


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
        with pytest.raises(ModelError, match="methods cannot run"):
            esa.session  # noqa: B018


def test_python_answers_as_the_command_line_does(folder: Path, book: Path) -> None:
    with Esa.load("tiny-random", [f"model={folder}"], device="cpu") as esa:
        reply = esa.ask(QUESTION, [esa.ingest(str(book))])
        assert (reply.answered_from, reply.read) == ("text", False)


@pytest.mark.parametrize(("method", "more"), [("infllm", []), (None, ["answer.from=rows"])])
def test_what_needs_a_method_is_refused(folder: Path, method: str | None, more: list[str]) -> None:
    with pytest.raises(ModelError, match="methods cannot run") as caught:
        Esa.load("tiny-random", [f"model={folder}", *more], method=method, device="cpu")
    assert "(answer.from=text)" in caught.value.hint


@pytest.mark.parametrize("settings", [[], ["--set", "answer.from=text"]])
def test_asked_from_the_command_line(
    folder: Path, book: Path, capsys: pytest.CaptureFixture[str], settings: list[str]
) -> None:
    """The preset's window of 8,192 tokens is longer than the model's."""
    model = ["--preset", "consensus", "--model", str(folder)]
    assert main(["ask", str(book), QUESTION, *model, *settings]) == 0
    out = capsys.readouterr()
    assert "lamp" in out.out + out.err
    assert "answers come from passages that are found with BM25 alone: ESA's methods" in out.err
