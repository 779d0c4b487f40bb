"""Documents of models with layers that keep a state, in a library: tiny random ones."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from test_recurrent_models import QUESTION, TEXT, write_model

from esa_cli import models
from esa_cli.__main__ import main
from esa_cli.errors import LibraryError
from esa_cli.models.attachment.inspection import state_devices
from esa_cli.models.text_passes.layer_calls import before_each_layer
from esa_cli.qa.api import Esa
from esa_cli.qa.books import Book
from esa_cli.qa.planning.model_shape import shape_of
from esa_cli.qa.presets import preset
from esa_cli.storage.library import Entry, Layout, Library, checksummed_file
from esa_cli.storage.library.document_files import pack_states, read_states
from esa_cli.storage.library.library_paths import LibraryPaths

pytestmark = pytest.mark.families

FAMILIES = ["lfm2", "qwen3_next", "granitemoehybrid", "falcon_h1"]
"""Convolutions, linear attention, Mamba, and Mamba beside attention."""
LAYERS = 2


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = {kind: tmp_path_factory.mktemp(kind) for kind in FAMILIES}
    for kind, folder in out.items():
        write_model(folder, kind)
    return out


@pytest.fixture(params=FAMILIES)
def loaded(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Any:
    return models.load(str(folders[request.param]), device="cpu", dtype="float32")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "gate.txt"
    path.write_text(TEXT, "utf-8")
    return path


@pytest.fixture
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 256 tokens, in two pieces each."""
    monkeypatch.setattr("esa_cli.qa.ingestion.row_ingest.SEGMENT", 256)
    monkeypatch.setattr("esa_cli.qa.planning.row_storage.SEGMENT", 256)
    monkeypatch.setattr("esa_cli.qa.answering.session.FEED", 128)


def open_esa(loaded: Any, library: Library | None, rows: str = "native") -> Esa:
    """With keys reduced by maps that are fitted to the first tokens."""
    chosen = preset.load("tiny-random", ["compressor.fit_tokens=200"])
    return Esa(loaded, chosen, library=library, rows=rows)


def entry_of(book: Book) -> Entry:
    assert book.entry is not None
    return book.entry


def asked(reader: Esa, book: Book) -> tuple[Any, ...]:
    reply = reader.ask(QUESTION, [book], max_new_tokens=4)
    assert reply.evidence
    return reply.text, [(one.start, one.weight) for one in reply.evidence]


def states_of(book: Book) -> list[torch.Tensor]:
    assert book.prefilled is not None
    return [one for state in book.prefilled.recurrent for one in state.values()]


def contents(library: Library) -> dict[str, bytes]:
    """The bytes of all data of documents."""
    kinds = (".seg", ".fit", ".text", ".tokens", ".states")
    found = [one for one in library.root.rglob("*") if one.suffix in kinds]
    return {one.name: one.read_bytes() for one in found}


def test_a_stored_book_answers_as_one_in_memory(
    loaded: Any, path: Path, tmp_path: Path, short_segments: None
) -> None:
    """Twice in a row, and again where it is found; its states are the same bit for bit."""
    places = (None, *(Library(tmp_path / "library") for _ in range(2)))
    answers, states = list[Any](), list[list[torch.Tensor]]()
    for place in places:
        with open_esa(loaded, place) as reader:
            book = reader.ingest(str(path))
            answers += [asked(reader, book) for _ in range(2)]
            states.append(states_of(book))
            assert (book.read_s == 0) == (place is places[2])
    assert all(answer == answers[0] for answer in answers)
    for stored in states[1:]:
        assert all(map(torch.equal, stored, states[0]))
    [entry] = Library(tmp_path / "library").entries()
    size = shape_of(loaded.model.config.to_dict()).states(4)
    assert size < entry.sizes["states"] < size + 1000


@pytest.mark.parametrize("rows", ["native", "int8"])
def test_reading_goes_on_in_another_process(
    loaded: Any, path: Path, tmp_path: Path, short_segments: None, rows: str
) -> None:
    """Stopped again and again, it ends with the bytes of a reading that was not."""
    whole, stopped = Library(tmp_path / "whole"), Library(tmp_path / "stopped")
    with open_esa(loaded, whole, rows) as reader:
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
            open_esa(loaded, stopped, rows) as reader,
            before_each_layer(loaded.model, stop),
        ):
            reader.ingest(str(path), lambda done, total: progress.append(done))
        began.append(progress[0] - 128)
    assert began == [0, 256, 512, 768]
    assert entry.tokens > 7 * 128
    assert contents(stopped) == contents(whole)
    with open_esa(loaded, stopped, rows) as reader:
        assert asked(reader, reader.ingest(str(path))) == want


def test_what_was_read_to_its_end_is_not_read_again(
    loaded: Any, path: Path, tmp_path: Path, short_segments: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped before its manifest was written."""
    library, progress = Library(tmp_path / "library"), list[int]()

    def stop(*given: Any) -> None:
        raise KeyboardInterrupt

    with open_esa(loaded, library) as reader:
        with monkeypatch.context() as patch:
            patch.setattr("esa_cli.storage.library.entry_writer.pack_tokens", stop)
            with pytest.raises(KeyboardInterrupt):
                reader.ingest(str(path))
        book = reader.ingest(str(path), lambda done, total: progress.append(done))
        want = asked(reader, book)
    assert progress == []
    with open_esa(loaded, None) as reader:
        assert asked(reader, reader.ingest(str(path))) == want


def test_each_layers_state_is_where_the_layer_is(
    loaded: Any, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_esa(loaded, Library(tmp_path / "library")) as reader:
        reader.ingest(str(path))
        count = len(state_devices(loaded.model))
        away = [torch.device("meta")] * count
        monkeypatch.setattr("esa_cli.qa.ingestion.row_ingest.state_devices", lambda model: away)
        found = reader.ingest(str(path))
        assert {one.device.type for one in states_of(found)} == {"meta"}
        assert len(found.prefilled.recurrent) == count if found.prefilled else False


def test_the_sizes_in_the_docs() -> None:
    """Of published configurations."""
    common = {"intermediate_size": 8192, "vocab_size": 65536, "num_attention_heads": 16}
    qwen = {
        **common,
        "model_type": "qwen3_next",
        "num_hidden_layers": 48,
        "hidden_size": 2048,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    }
    lfm = {
        **common,
        "model_type": "lfm2",
        "num_hidden_layers": 16,
        "full_attn_idxs": [2, 5, 8, 10, 12, 14],
        "hidden_size": 2048,
        "num_key_value_heads": 8,
    }
    shapes = shape_of(lfm), shape_of(qwen)
    layout = Layout(shapes[1].rows, shapes[1].groups, shapes[1].dim, "bfloat16", "int8")
    sizes = [*(shape.states(2) for shape in shapes), layout.nbytes(layout.segment)]
    assert [round(size, -3) // 1000 for size in sizes] == [123, 77_857, 51_515]


def test_from_ingest_to_removal(
    folders: dict[str, Path],
    path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The commands, with each library in turn."""
    given = ["--preset", "tiny-random", "--device", "cpu", "--model", str(folders["qwen3_next"])]

    def run(*arguments: str, code: int = 0) -> Any:
        capsys.readouterr()
        assert main(list(arguments)) == code
        return capsys.readouterr()

    plan = json.loads(run("plan", str(path), "--cache", "disk", "--json", *given).out)
    [kept] = json.loads(run("ingest", str(path), "--json", *given).out)["documents"]
    assert kept["bytes"] < plan["stored_bytes"] < 1.3 * kept["bytes"]
    given += ["--max-new-tokens", "2"]
    ask = ("ask", str(path), QUESTION, *given)
    first = run(*ask)
    assert "reading" not in first.err
    run("library", "verify")
    assert "states      of 1 layers" in run("library", "show", kept["id"]).out
    run("library", "copy", "library", str(tmp_path / "book.tar"), kept["id"])
    monkeypatch.setenv("ESA_LIBRARY", str(tmp_path / "other"))
    run("library", "copy", str(tmp_path / "book.tar"), "library")
    assert run(*ask).out == first.out
    [states] = (tmp_path / "other" / "documents").glob("*.states")
    data = states.read_bytes()
    states.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert f"{states.name} is damaged" in run(*ask, code=3).err
    run("library", "verify", code=3)
    run("library", "rm", kept["id"], "--yes")
    assert not list((tmp_path / "other").glob("documents/*"))
    kept_again = run("ask", str(path), QUESTION, "--cache", "disk", *given)
    assert kept_again.out == first.out


def test_states_of_other_shapes_name_their_file(
    folders: dict[str, Path], path: Path, tmp_path: Path
) -> None:
    """With a valid checksum, as a stranger's export can have them: the model would fail."""
    loaded = models.load(str(folders["qwen3_next"]), device="cpu", dtype="float32")
    library = Library(tmp_path / "library")
    entry = entry_of(open_esa(loaded, library).ingest(str(path)))
    file = LibraryPaths(library.root).document(entry.key, "states")
    found = read_states(LibraryPaths(library.root), entry.layout, entry.key)
    wrong = [{name: one[..., :1].clone() for name, one in state.items()} for state in found.states]
    checksummed_file.write(file, "states", pack_states(found.segment, wrong), entry.key)
    with pytest.raises(LibraryError, match="other shapes than this model's") as raised:
        open_esa(loaded, library).ingest(str(path))
    assert str(file) in raised.value.message
    assert f"esa library rm {entry.id}" in raised.value.hint
