"""Models with layers that keep a state, from a folder to an answer: tiny random ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import KINDS, build_model

from esa_cli import models
from esa_cli.errors import UsageError
from esa_cli.evaluation.calibration.fitted_projections import open_projection_fitter
from esa_cli.models.files.random_model import write_byte_tokenizer
from esa_cli.models.text_passes.model_forward import call_before_each_layer
from esa_cli.qa.answering.session import Session
from esa_cli.qa.api import Esa
from esa_cli.qa.presets.preset import load_preset

pytestmark = pytest.mark.families

FAMILIES = ["lfm2", "qwen3_5_text"]
TEXT = " ".join(f"Gate {n} opens at {n * n % 97} past nine." for n in range(30))
QUESTION, OTHER = "When does gate 17 open?", "What opens at 5 past nine?"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Four layers each, the second and fourth with attention."""
    out = {}
    for kind in FAMILIES:
        out[kind] = tmp_path_factory.mktemp(kind)
        layers = {"num_hidden_layers": 4, "layer_types": 2 * KINDS[kind][1]["layer_types"]}
        write_model(out[kind], kind, **layers)
    return out


def write_model(folder: Path, kind: str, **changes: Any) -> None:
    """A tiny random model that reads bytes, in a folder."""
    ids = {"bos_token_id": 256, "eos_token_id": 258, "pad_token_id": 256}
    build_model(kind, vocab_size=259, **ids, **changes).save_pretrained(folder)
    write_byte_tokenizer(folder)


@pytest.fixture(params=FAMILIES)
def loaded(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Any:
    return models.load(str(folders[request.param]), device="cpu", dtype="float32")


def session_of(loaded: Any, *method: str) -> Session:
    return Session(loaded.model, loaded.tokenizer, load_preset("tiny-random", method))


def test_reading_is_resumed_before_a_last_piece_of_one_token(
    loaded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0

    def stop() -> None:
        nonlocal steps
        steps += 1
        if steps == 6:
            raise KeyboardInterrupt

    with session_of(loaded) as session:
        ids = session.prompt.encode_document(TEXT)
        monkeypatch.setattr("esa_cli.qa.answering.session.FEED", len(ids) - 1)
        session.read(TEXT)
        want = session.ask(QUESTION).text
        session.plan_prefill(ids)
        with call_before_each_layer(loaded.model, stop), pytest.raises(KeyboardInterrupt):
            session.resume()
        assert session.document_tokens == len(ids) - 1
        session.resume()
        assert session.ask(QUESTION).text == want


def test_books_are_asked_in_turn_and_not_together(loaded: Any, tmp_path: Path) -> None:
    paths = [tmp_path / "gate.txt", tmp_path / "market.txt"]
    paths[0].write_text(TEXT, "utf-8")
    paths[1].write_text(TEXT.replace("Gate", "Market"), "utf-8")
    with Esa(loaded, load_preset("tiny-random")) as reader:
        books = [reader.ingest(str(path)) for path in paths]
        both = [[reader.ask(QUESTION, [book]).text for book in books] for _ in range(2)]
        assert both[0] == both[1]
        with pytest.raises(UsageError, match=r"layers of this .* keep a state"):
            reader.ask(QUESTION, books)
        with pytest.raises(UsageError, match="states of several documents cannot be joined"):
            reader.session.open([book.prefilled for book in books if book.prefilled])
        assert reader.ask(QUESTION, [books[0]]).text == both[0][0]


def test_maps_are_not_fitted(loaded: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="recurrent layers"):
        open_projection_fitter(loaded, load_preset("tiny-random"), TEXT, 2000, tmp_path)
