"""Servers of language models on this machine, such as Ollama: their names, addresses and models."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

LOCAL = "127.0.0.1"
PROBE_S = 2.0
"""The maximum wait for all servers' lists of models."""
HINT_S = 0.045
"""The same wait below an answer. A port where nobody listens takes none of it."""
MAX_BYTES = 1 << 20
"""The maximum size of a server's list of models."""
_ADDRESS_WITHOUT_PATH = re.compile(r"https?://[^/?]+/?", re.IGNORECASE)
_HOST_AND_PORT = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}(?:/\S*)?")


@dataclass(frozen=True)
class LocalServer:
    """A program that serves models by OpenAI's protocol, on a well-known port of this machine."""

    title: str
    port: int
    start: str

    @property
    def url(self) -> str:
        return f"http://{LOCAL}:{self.port}/v1"

    def list_models(self, until: float) -> list[str] | None:
        """Asks the server for the names of its models; returns None if no such server answers
        until `time.monotonic()` is `until`. No proxy is asked."""
        import socket

        data, least_s = b"", 1e-6
        # By HTTP 1.0, so that the body comes whole, and the time of all of it has a limit.
        request = f"GET /v1/models HTTP/1.0\r\nHost: {LOCAL}:{self.port}\r\n\r\n".encode()
        try:
            left_s = max(until - time.monotonic(), least_s)
            with socket.create_connection((LOCAL, self.port), left_s) as connection:
                connection.sendall(request)
                while len(data) < MAX_BYTES:
                    connection.settimeout(max(until - time.monotonic(), least_s))
                    if not (piece := connection.recv(1 << 16)):
                        break
                    data += piece
            body = json.loads(data.partition(b"\r\n\r\n")[2])
            return [str(model["id"]) for model in body["data"]]
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return None


SERVERS = {
    "ollama": LocalServer(
        "Ollama", 11434, "start Ollama by `ollama serve`, and fetch a model by `ollama pull MODEL`"
    ),
    "lmstudio": LocalServer(
        "LM Studio", 1234, "start its server by `lms server start`, and load a model there"
    ),
    "llama.cpp": LocalServer("llama.cpp", 8080, "start it by `llama-server -m MODEL.gguf`"),
}
"""The known servers, by the name that --reader takes for each."""


def find_running_servers(timeout_s: float = PROBE_S) -> dict[str, list[str]]:
    """Returns the names of the known servers that run on this machine, with their models."""
    until = time.monotonic() + timeout_s
    found = {name: server.list_models(until) for name, server in SERVERS.items()}
    return {name: models for name, models in found.items() if models is not None}


def list_answering_models(model_names: Sequence[str]) -> list[str]:
    """Lists the models of a server that are not named as models of embeddings."""
    return [name for name in model_names if "embed" not in name.lower()]


def explain_how_to_start(url: str) -> str | None:
    """Says how to start the known server at a URL, or returns None for other addresses."""
    start = next((server.start for server in SERVERS.values() if server.url == url), None)
    return start and f"{start}; `esa doctor` lists the servers that run here"


def complete_server_address(name: str) -> str:
    """Returns the web address that a name stands for: a known server, HOST:PORT, or a web address
    without a path, each also with `#MODEL`. Returns other names unchanged, but stripped."""
    address, mark, model = name.strip().partition("#")
    if (server := SERVERS.get(address.lower())) is not None:
        address = server.url
    elif _HOST_AND_PORT.fullmatch(address):
        address = f"http://{address}"
    if _ADDRESS_WITHOUT_PATH.fullmatch(address):
        address = address.rstrip("/") + "/v1"
    return address + mark + model


def is_server_address(name: str) -> bool:
    """Whether the name of a reader or finder stands for a server."""
    return complete_server_address(name).lower().startswith(("http://", "https://"))
