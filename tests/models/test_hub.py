"""Models on the hub: what is fetched, in silence, and how a hub that says nothing is given up.

The hub is a small server of this test; huggingface_hub reads its address when it is imported, so
each test runs in another process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKENIZER = (
    "added_tokens.json", "chat_template.jinja", "chat_template.json", "merges.txt",
    "special_tokens_map.json", "spiece.model", "tekken.json", "tiktoken.model", "tokenizer.json",
    "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt",
)  # fmt: skip
"""Every file from which a tokenizer or its chat template may be read."""
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": b"large",
    "original/tokenizer.model": b"not for us",
    **{name: name.encode() for name in TOKENIZER},
}
PEEK = """from esa_cli import models
print(models.fetch_model_folder('esa-test/small', with_weights=False))
"""


class Hub(BaseHTTPRequestHandler):
    """What snapshot_download asks for, of the one model `esa-test/small`."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        path = self.path.split("?")[0]
        name = path.partition(f"/esa-test/small/resolve/{COMMIT}/")[2]
        if path.startswith("/api/models/esa-test/small/tree/"):
            tree = [{"type": "file", "path": n, "size": len(b), "oid": n} for n, b in FILES.items()]
            self._send(json.dumps(tree).encode(), body)
        elif path.startswith("/api/models/esa-test/small"):
            facts = {"id": "esa-test/small", "sha": COMMIT, "siblings": []}
            self._send(json.dumps(facts).encode(), body)
        elif name in FILES:
            self._send(FILES[name], body, name)
        else:
            self.send_error(404)

    def _send(self, data: bytes, body: bool, tag: str = "") -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{tag}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def python(code: str, hub: str, cache: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: os.environ[name] for name in os.environ if not name.startswith("HF_")}
    environment |= {
        "HF_ENDPOINT": hub,
        "HF_HOME": str(cache),
        "ESA_HOME": str(cache / "esa"),
        "PYTHONPATH": str(ROOT),
        "TQDM_POSITION": "-1",  # makes huggingface_hub draw its bars where there is no terminal
    }
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=40
    )


def test_small_files_come_in_silence_and_once_and_are_not_the_model(
    hub: str, tmp_path: Path
) -> None:
    first = python(PEEK, hub, tmp_path)
    assert first.stderr == ""
    folder = Path(first.stdout.strip())
    assert sorted(path.name for path in folder.iterdir()) == sorted(("config.json", *TOKENIZER))
    code = (
        PEEK + "from esa_cli import models\nfrom esa_cli.errors import ModelError\n"
        "print(models.find_model_folder('esa-test/small'))\nseen = []\n"
        "try: models.fetch_model_folder('esa-test/small', progress=lambda *a: seen.append(a))\n"
        "except ModelError: print('no network')"
    )
    again = python(code, "http://127.0.0.1:9", tmp_path)
    assert again.stdout.splitlines() == [str(folder), "None", "no network"]


def test_the_hubs_models_are_fetched_listed_and_left_to_the_hub(hub: str, tmp_path: Path) -> None:
    code = (
        "from esa_cli import models\nfrom esa_cli.errors import ModelError\nseen = []\n"
        "folder = models.fetch_model_folder('esa-test/small', progress=lambda *a: seen.append(a))\n"
        "(one,) = models.list_models()\n"
        "print(sorted(path.name for path in folder.iterdir()))\n"
        "print(one.name, one.kind, one.size, seen[0], seen[-1][1])\n"
        "print(models.find_model_folder(one.name) == folder)\n"
        "try: models.delete_cached_model('esa-test/small')\n"
        "except ModelError: print('left to the hub')"
    )
    result = python(code, hub, tmp_path)
    whole = sum(len(body) for name, body in FILES.items() if "/" not in name)
    assert result.stderr == ""
    assert result.stdout.splitlines() == [
        str(sorted(name for name in FILES if "/" not in name)),
        f"esa-test/small hub {whole} ('download', 0, None) {whole}",
        "True",
        "left to the hub",
    ]
