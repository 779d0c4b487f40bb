"""Models with layers that keep a state, from a folder to an answer: tiny random ones."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import KINDS, build_model

from esa_cli import models
from esa_cli.errors import LibraryError, UsageError
from esa_cli.evaluation.calibration.fitted_projections import open_projection_fitter
from esa_cli.models.files.random_model import write_byte_tokenizer
from esa_cli.models.text_passes.text_forward import call_before_each_layer
from esa_cli.qa.answering.session import Session
from esa_cli.qa.api import Esa
from esa_cli.qa.finding.passage_finder import Book
from esa_cli.qa.planning.model_shape import read_model_shape
from esa_cli.qa.presets.preset import load_preset
from esa_cli.storage.library import Library, LibraryEntry
from esa_cli.storage.library.disk import LibraryPaths, write_checksummed_file
from esa_cli.storage.library.packed_files import pack_recurrent_states
from esa_cli.storage.library.stored_cache import read_recurrent_states

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


STORED_FAMILIES = ["lfm2", "qwen3_next", "falcon_h1"]
"""Convolutions, linear attention, and Mamba beside attention."""
LAYERS = 2


@pytest.fixture(scope="module")
def stored_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = {kind: tmp_path_factory.mktemp(kind) for kind in STORED_FAMILIES}
    for kind, folder in out.items():
        write_model(folder, kind)
    return out


@pytest.fixture(params=STORED_FAMILIES)
def stored_loaded(request: pytest.FixtureRequest, stored_folders: dict[str, Path]) -> Any:
    return models.load(str(stored_folders[request.param]), device="cpu", dtype="float32")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "gate.txt"
    path.write_text(TEXT, "utf-8")
    return path


@pytest.fixture
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 256 tokens, in two pieces each."""
    monkeypatch.setattr("esa_cli.qa.ingestion.kv_cache_ingest.SEGMENT", 256)
    monkeypatch.setattr("esa_cli.qa.presets.resolved_preset.SEGMENT", 256)
    monkeypatch.setattr("esa_cli.qa.answering.session.FEED", 128)


def open_esa(stored_loaded: Any, library: Library | None, rows: str = "native") -> Esa:
    """With keys reduced by maps that are fitted to the first tokens."""
    chosen = load_preset("tiny-random", ["compressor.fit_tokens=200"])
    return Esa(stored_loaded, chosen, library=library, rows=rows)


def entry_of(book: Book) -> LibraryEntry:
    assert book.entry is not None
    return book.entry


def asked(reader: Esa, book: Book) -> tuple[Any, ...]:
    reply = reader.ask(QUESTION, [book], max_new_tokens=4)
    assert reply.evidence
    return reply.text, [(one.start, one.weight) for one in reply.evidence]


def states_of(book: Book) -> list[torch.Tensor]:
    return [one for state in book.prefilled.recurrent for one in state.values()]


def contents(library: Library) -> dict[str, bytes]:
    """The bytes of all data of documents."""
    kinds = (".seg", ".fit", ".text", ".tokens", ".states")
    found = [one for one in library.root.rglob("*") if one.suffix in kinds]
    return {one.name: one.read_bytes() for one in found}


def test_a_stored_book_answers_as_one_in_memory(
    stored_loaded: Any, path: Path, tmp_path: Path, short_segments: None
) -> None:
    """Twice in a row, and again where it is found; its states are the same bit for bit."""
    places = (None, *(Library(tmp_path / "library") for _ in range(2)))
    answers, states = list[Any](), list[list[torch.Tensor]]()
    for place in places:
        with open_esa(stored_loaded, place) as reader:
            book = reader.ingest(str(path))
            answers += [asked(reader, book) for _ in range(2)]
            states.append(states_of(book))
            assert (book.read_s == 0) == (place is places[2])
    assert all(answer == answers[0] for answer in answers)
    for stored in states[1:]:
        assert all(map(torch.equal, stored, states[0]))
    [entry] = Library(tmp_path / "library").entries()
    size = read_model_shape(stored_loaded.model.config.to_dict()).count_recurrent_state_bytes(4)
    assert size < entry.sizes["states"] < size + 1000


@pytest.mark.parametrize("rows", ["native", "int8"])
def test_reading_goes_on_in_another_process(
    stored_loaded: Any, path: Path, tmp_path: Path, short_segments: None, rows: str
) -> None:
    """Stopped again and again, it ends with the bytes of a reading that was not."""
    whole, stopped = Library(tmp_path / "whole"), Library(tmp_path / "stopped")
    with open_esa(stored_loaded, whole, rows) as reader:
        entry = entry_of(reader.ingest(str(path)))
        want = asked(reader, reader.ingest(str(path)))
    calls, progress, began = 0, list[int](), list[int]()

    def stop() -> None:
        nonlocal calls
        calls += 1
        if calls > 3 * LAYERS:
            raise KeyboardInterrupt

    for _ in range(4):
        calls = 0
        progress.clear()
        with (
            suppress(KeyboardInterrupt),
            open_esa(stored_loaded, stopped, rows) as reader,
            call_before_each_layer(stored_loaded.model, stop),
        ):
            reader.ingest(str(path), lambda done, total: progress.append(done))
        began.append(progress[0] - 128)
    assert began == [0, 256, 512, 768]
    assert entry.tokens > 7 * 128
    assert contents(stopped) == contents(whole)
    with open_esa(stored_loaded, stopped, rows) as reader:
        assert asked(reader, reader.ingest(str(path))) == want


def test_states_of_other_shapes_name_their_file(
    stored_folders: dict[str, Path], path: Path, tmp_path: Path
) -> None:
    """With a valid checksum, as a stranger's export can have them: the model would fail."""
    stored_loaded = models.load(str(stored_folders["qwen3_next"]), device="cpu", dtype="float32")
    library = Library(tmp_path / "library")
    with open_esa(stored_loaded, library) as reader:
        entry = entry_of(reader.ingest(str(path)))
    file = LibraryPaths(library.root).get_document_path(entry.key, "states")
    last, found = read_recurrent_states(LibraryPaths(library.root), entry.layout.states, entry.key)
    wrong = [{name: one[..., :1].clone() for name, one in state.items()} for state in found]
    write_checksummed_file(file, pack_recurrent_states(last, wrong), entry.key)
    with (
        open_esa(stored_loaded, library) as reader,
        pytest.raises(LibraryError, match="other shapes than this model's") as raised,
    ):
        reader.ingest(str(path))
    assert str(file) in raised.value.message
