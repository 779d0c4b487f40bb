"""A second model here that words answers, and the choice between it and a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from reader_models import foreign_model, wide_model

from esa_cli import models
from esa_cli.errors import EsaError, HistoryError, LengthError, ModelError, PresetError, UsageError
from esa_cli.models.files.random_model import TEMPLATE
from esa_cli.qa.answering.reply import Turn
from esa_cli.qa.finding.passage import Passage
from esa_cli.qa.reading.reader import SYSTEM, ChatReader, Sampling
from esa_cli.qa.reading.reader_choice import ReaderChoice

PASSAGES = [Passage("a.txt", "a.txt", None, n, None, 0, 9, f"Passage {n}. " * 20) for n in range(8)]
SAMPLING = Sampling(6)
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('none') }}{% endif %}"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def opened(ref: str) -> ChatReader:
    found = ReaderChoice.of(ref).open("cpu", "float32")
    assert isinstance(found, ChatReader)
    return found


def prompt(one: ChatReader, *history: Turn, question: str = "When?") -> str:
    ids = one.prompt_ids(question, PASSAGES, history, 6)
    return str(one.prompt.tokenizer.decode(ids))


def test_a_supported_model_with_its_template(tmp_path: Path) -> None:
    one, pieces = opened(wide_model(tmp_path / "wide")), list[str]()
    found = one.answer("When?", PASSAGES, (), SAMPLING, pieces.append)
    assert one.name == "wide"
    assert "".join(pieces).strip() == found.text
    assert 1 <= found.answer_tokens <= 6
    assert one.nbytes == sum(p.numel() * 4 for p in one.model.parameters())
    text = prompt(one, Turn("Who?", "Ann."))
    assert text.startswith(f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\nPassages:")
    assert "[8] a.txt\nPassage 7." in text
    assert "Question: Who?<|im_end|>\n<|im_start|>assistant\nAnn.<|im_end|>" in text
    assert text.endswith("Question: When?<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("template", [None, NO_SYSTEM + TEMPLATE])
def test_any_causal_model_with_as_many_passages_as_fit(
    tmp_path: Path, template: str | None
) -> None:
    one = opened(foreign_model(tmp_path / "gpt", template))
    text = prompt(one)
    assert text.count(SYSTEM) == 1
    assert "<|im_start|>system" not in text
    assert "[5] a.txt" in text
    assert "[8] a.txt" not in text
    assert one.answer("When?", PASSAGES, (), SAMPLING).answer_tokens >= 1


def test_what_does_not_fit(tmp_path: Path) -> None:
    one = opened(foreign_model(tmp_path / "gpt"))
    with pytest.raises(LengthError, match="window of the reader gpt has 2,048"):
        one.answer("When?" * 500, PASSAGES, (), SAMPLING)
    with pytest.raises(HistoryError):
        one.answer("When?", PASSAGES, (Turn("Who?" * 500, "Ann."),), SAMPLING)


def test_a_preset_means_its_model(tmp_path: Path) -> None:
    assert ReaderChoice.of("tiny-random").ref == models.parse_reference("random:llama")
    Path("own.yaml").write_text("extends: tiny-random\nmodel: some/model\n")
    assert str(ReaderChoice.of("./own.yaml").ref).count("some/model")
    assert ReaderChoice.of("some/model").address is None
    (tmp_path / "model").mkdir()
    found = ReaderChoice.of("model").ref
    assert found is not None
    assert found.kind == "folder"


@pytest.mark.parametrize(
    ("named", "model", "kind", "words"),
    [
        ("smollm2-36m", None, ModelError, "unknown model"),
        ("./gone.yaml", None, PresetError, "no preset file"),
        ("tiny-random", "large", UsageError, "are of a server"),
        ("http://", None, UsageError, "must be a web address"),
        ("ftp://host/v1", None, EsaError, "web address"),
    ],
)
def test_names_of_nothing(named: str, model: Any, kind: type[EsaError], words: str) -> None:
    with pytest.raises(kind, match=words):
        ReaderChoice.of(named, model)
