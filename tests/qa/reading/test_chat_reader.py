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
from esa_cli.qa.presets.preset import load_preset
from esa_cli.qa.reading import reader as reader_module
from esa_cli.qa.reading import reader_choice
from esa_cli.qa.reading.reader import SYSTEM, ChatReader, SamplingParams, make_chat_messages
from esa_cli.qa.reading.reader_choice import ReaderChoice

PASSAGES = [Passage("a.txt", "a.txt", None, n, None, 0, 9, f"Passage {n}. " * 20) for n in range(8)]
SAMPLING = SamplingParams(6)
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('none') }}{% endif %}"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def opened(ref: str) -> ChatReader:
    named = ReaderChoice.parse(ref).ref
    assert named is not None
    return ChatReader(models.load(named, device="cpu", dtype="float32"))


def prompt(one: ChatReader, *history: Turn, question: str = "When?") -> str:
    ids = one.encode_prompt(question, PASSAGES, history, 6)
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
    assert ReaderChoice.parse("tiny-random").ref == models.parse_reference("random:llama")
    Path("own.yaml").write_text("extends: tiny-random\nmodel: some/model\n")
    assert str(ReaderChoice.parse("./own.yaml").ref).count("some/model")
    assert ReaderChoice.parse("some/model").server is None
    (tmp_path / "model").mkdir()
    found = ReaderChoice.parse("model").ref
    assert found.kind == "folder"


@pytest.mark.parametrize(
    ("named", "model", "kind", "words"),
    [
        ("smollm2-36m", None, ModelError, "unknown model"),
        ("./gone.yaml", None, PresetError, "no preset file"),
        ("tiny-random", "large", UsageError, "need a server"),
        ("http://", None, UsageError, "must be a web address"),
        ("ftp://host/v1", None, EsaError, "not a model reference"),
    ],
)
def test_names_of_nothing(named: str, model: Any, kind: type[EsaError], words: str) -> None:
    with pytest.raises(kind, match=words):
        ReaderChoice.parse(named, model)


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_chat_messages_begin_with_the_passages(turns: int) -> None:
    history = [Turn("Be kind.", ""), *[Turn(f" Who is {n}? ", f"Ann {n}.") for n in range(turns)]]
    asked = [f"Question: Who is {n}?" for n in range(turns)] + ["Question: When?"]
    asked[0] = "Passages:\n\n[1] a.txt, page 2, One\nx y\n\n[2] b.txt\nz\n\n" + asked[0]
    want = [("system", f"{SYSTEM}\n\nBe kind.")]
    for n, text in enumerate(asked):
        want += [("user", text), ("assistant", f"Ann {n}.")]
    passages = [
        Passage("a.txt", "", 2, 1, "One", 0, 4, " x\ny "),
        Passage("b.txt", "", None, 1, None, 0, 1, "z"),
    ]
    found = make_chat_messages(" When? ", passages, history)
    assert [(one["role"], one["content"]) for one in found] == want[:-1]


def test_the_prompt_has_as_many_passages_as_fit(tmp_path: Path) -> None:
    """Against a loop over all numbers of passages, at the edge of each."""
    one = opened(wide_model(tmp_path / "wide"))
    sizes = []
    for count in range(1, 9):
        one.window_tokens = 10**6
        sizes.append(len(one.encode_prompt("When?", PASSAGES[:count], (), 0)))
    for count, size in enumerate(sizes, 1):
        for spare, want in ((0, count), (-1, count - 1)):
            one.window_tokens = size + 20 + spare
            if want:
                assert len(one.encode_prompt("When?", PASSAGES, (), 20)) == sizes[want - 1]
            else:
                with pytest.raises(LengthError):
                    one.encode_prompt("When?", PASSAGES, (), 20)


def test_an_answer_has_a_quarter_of_the_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, limits = opened(wide_model(tmp_path / "wide")), list[Any]()

    def generated(*given: Any, max_new_tokens: int, **options: Any) -> None:
        limits.append(max_new_tokens)

    monkeypatch.setattr(reader_module, "generate", generated)
    for window, asked, want in ((8192, None, 1024), (3000, None, 750), (3000, 9, 9)):
        one.window_tokens = window
        one.answer("When?", PASSAGES[:1], (), SamplingParams(asked))
        assert limits.pop() == want


@pytest.mark.parametrize("seconds", [0.0, -1.0, 86_401.0])
def test_a_time_limit_is_above_zero_and_at_most_a_day(seconds: float) -> None:
    with pytest.raises(UsageError, match="ESA_READER_TIMEOUT"):
        ReaderChoice.parse("http://127.0.0.1:9/v1", None, seconds)
    for fine in (0.1, 86_400.0):
        assert ReaderChoice.parse("http://127.0.0.1:9/v1", None, fine).timeout_s == fine
    with pytest.raises(UsageError, match="need a server"):
        ReaderChoice.parse("tiny-random", None, 5.0)


def test_what_a_reader_takes_and_who_has_one() -> None:
    server = ReaderChoice.parse("http://127.0.0.1:9/v1")
    assert reader_choice.count_reader_weight_bytes(server, 4) == 0
    assert reader_choice.count_reader_weight_bytes(ReaderChoice.parse("some/model"), 4) is None
    plain, text = load_preset("tiny-random"), load_preset("tiny-random", ["answer.from=text"])
    named = load_preset("tiny-random", ["answer.from=text", "answer.reader=some/model"])
    assert (reader_choice.find_preset_reader(plain), reader_choice.find_preset_reader(text)) == (
        None,
        None,
    )
    assert reader_choice.find_preset_reader(named) == ReaderChoice.parse("some/model")
    reader_choice.check_reader_gets_passages(None, plain)
    reader_choice.check_reader_gets_passages(server, text)
    with pytest.raises(UsageError, match="KV cache"):
        reader_choice.check_reader_gets_passages(server, plain)
