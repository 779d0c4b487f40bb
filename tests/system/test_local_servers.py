"""Servers of models on this machine: their names and addresses, and which of them run."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from completion_server import CompletionServer

from esa_cli.system.local_servers import (
    HINT_S,
    SERVERS,
    LocalServer,
    complete_server_address,
    find_running_servers,
    is_server_address,
    list_answering_models,
)

OLLAMA = "http://127.0.0.1:11434/v1"


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("ollama", OLLAMA),
        (" Ollama#qwen3:8b", f"{OLLAMA}#qwen3:8b"),
        ("llama.cpp", "http://127.0.0.1:8080/v1"),
        ("localhost:11434", "http://localhost:11434/v1"),
        ("localhost:11434/v1#a/b:1", "http://localhost:11434/v1#a/b:1"),
        ("[::1]:8080", "http://[::1]:8080/v1"),
        ("http://localhost:11434/", "http://localhost:11434/v1"),
        ("https://api.example", "https://api.example/v1"),
        ("https://api.example/openai", "https://api.example/openai"),
        ("http://host?version=1", "http://host?version=1"),
    ],
)
def test_a_name_stands_for_a_web_address(name: str, address: str) -> None:
    assert complete_server_address(name) == address
    assert complete_server_address(address) == address
    assert is_server_address(name)


def test_models_and_files_are_no_servers() -> None:
    models = ("qwen3-4b", "Qwen/Qwen3-4B", "qwen3:8b", "random:llama")
    for name in (*models, "./ollama", "model.gguf", "C:\\m", ""):
        assert complete_server_address(name) == name
        assert not is_server_address(name)


def test_models_of_embeddings_do_not_answer() -> None:
    assert list_answering_models(["nomic-embed-text", "qwen3:8b", "phi4"]) == ["qwen3:8b", "phi4"]
    assert list_answering_models(["nomic-embed-text"]) == []


@pytest.fixture
def ports(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, CompletionServer]]:
    """Each known server on a free port; nobody listens on the last one's."""
    modes = {"ollama": "stream", "lmstudio": "page"}
    running = {name: CompletionServer([mode]) for name, mode in modes.items()}
    for name, server in running.items():
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        port = server.server_address[1]
        monkeypatch.setitem(SERVERS, name, LocalServer(name, port, "start"))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setitem(SERVERS, "llama.cpp", LocalServer("", unused.getsockname()[1], ""))
        yield running
    for server in running.values():
        server.shutdown()
        server.server_close()


def test_only_servers_of_models_are_found(ports: dict[str, CompletionServer]) -> None:
    assert find_running_servers(5) == {"ollama": ["large", "small"]}
    assert [one["path"] for one in ports["ollama"].seen] == ["/v1/models"]


def test_a_silent_server_takes_little_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        started = time.monotonic()
        assert LocalServer("", silent.getsockname()[1], "").list_models(started + 0.05) is None
        assert time.monotonic() - started < 1
    assert HINT_S < 0.05
