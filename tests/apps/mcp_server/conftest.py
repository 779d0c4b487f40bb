"""A library with two stored documents and a synchronised file, and folders beside it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from command import TINY
from mcp_client import FakeDocumentAsker, tools_of

from esa_cli.__main__ import main
from esa_cli.apps.server.mcp_server import McpDocumentTools
from esa_cli.storage.library import Library

BOAT = "A grey boat lies at the pier, and nobody knows whose it is. " * 25
GATE = f"{BOAT}\n\nCaptain Ahab has the only key of the northern gate.\n\n{BOAT}"


@pytest.fixture(scope="session")
def filled(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library on disk, made once; tests get copies."""
    folder = tmp_path_factory.mktemp("documents")
    (folder / "gate.txt").write_text(GATE, "utf-8")
    (folder / "pages.html").write_text("<h1>Harbour</h1><p>Ships sail at dawn.</p>", "utf-8")
    (folder / "synced").mkdir()
    (folder / "synced/kiln.md").write_text("The kiln is fired in Ulm. " * 30, "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ESA_HOME", str(cache))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("ESA_LIBRARY", str(folder / "library"))
        files = [str(folder / name) for name in ("gate.txt", "pages.html")]
        assert main(["ingest", *TINY, "--quiet", *files]) == 0
        assert main(["ingest", "--words", str(folder / "synced"), "--quiet"]) == 0
    return folder


@pytest.fixture
def library(filled: Path, tmp_path: Path, surroundings: None) -> Library:
    return Library(Path(shutil.copytree(filled / "library", tmp_path / "library")))


@pytest.fixture
def asker(library: Library) -> FakeDocumentAsker:
    return FakeDocumentAsker(library)


@pytest.fixture
def tools(asker: FakeDocumentAsker, library: Library, tmp_path: Path) -> McpDocumentTools:
    """Tools that may read the folder `open`, and not the one beside it."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open/loom.txt").write_text("The loom stands in Basel.\n" * 20, "utf-8")
    (tmp_path / "secret.txt").write_text("secret", "utf-8")
    return tools_of(asker, library, [tmp_path / "open"])


@pytest.fixture
def gate(library: Library) -> str:
    """The id of the stored gate.txt."""
    return f"library:{library.match_entries('gate.txt')[0].id}"
