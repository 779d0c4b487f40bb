"""The addresses, API keys and HTTP requests of servers with OpenAI's protocol, for readers and
finders; the servers receive texts of documents, and so are named by the user alone."""

from __future__ import annotations

import importlib.util
import json
import os
import time
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from esa_cli.errors import UsageError
from esa_cli.system.local_servers import complete_server_address
from esa_cli.system.machine import is_loopback_host

if TYPE_CHECKING:  # of an extra
    from requests import Response

OPENAI_KEY, OPENAI_HOST = "OPENAI_API_KEY", "api.openai.com"
"""The API key that other programs use, and the only server to which readers send this key."""
CONNECT_S = 10.0
SILENCE_S = 300.0
"""The maximum wait for the next words, as the server may first load its model."""
TRIES, BACKOFF_S, MAX_WAIT_S, RETRIED = 4, 0.5, 30.0, (429, 500, 502, 503)
MAX_MESSAGE = 200
"""The maximum number of characters that are shown of a server's message."""
MAX_BODY_BYTES = 64 << 20
"""The maximum size of a JSON body: the vectors of one request take a few MiB."""


class ServerConnection:
    """Sends HTTP requests to a server with OpenAI's protocol, which may be silent for `silence_s`
    seconds, with the server's API key."""

    def __init__(self, url: str, key: str | None = None) -> None:
        from requests import Session

        self.url, self.key, self.silence_s, self.session = url, key, SILENCE_S, Session()
        # A server of this machine is asked directly, without a proxy.
        self.session.trust_env = not is_loopback_host(urlsplit(url).hostname or "")
        self.session.auth = lambda request: request  # no login of ~/.netrc is sent
        self.session.headers["User-Agent"] = "esa-cli"
        if key is not None:
            self.session.headers["Authorization"] = f"Bearer {key}"

    @classmethod
    def parse(cls, url_text: str, kind: Literal["reader", "finder"]) -> ServerConnection:
        """Parses a URL, and reads the key from $ESA_READER_KEY or $ESA_FINDER_KEY. UsageError: one
        is wrong or would leave this machine unencrypted, or the package requests is missing."""
        if importlib.util.find_spec("requests") is None:
            wrong = f"a {kind} on a server needs the package requests"
            raise UsageError(wrong, "run pip install 'esa-cli[reader]'")
        variable, url = f"ESA_{kind.upper()}_KEY", complete_server_address(url_text).rstrip("/")
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            host = None
        if "@" in url:
            hint = f"set the environment variable {variable} to the key"
            raise UsageError(f"the address of --{kind} must have no user and password", hint)
        other = any(map(str.isspace, url)) or url.endswith("/chat/completions")
        if not host or other or parts.query or parts.fragment:
            wrong = f"--{kind} must be a web address without /chat/completions, got {url_text!r}"
            raise UsageError(wrong, f"use for example --{kind} ollama or http://127.0.0.1:11434")
        is_openai = kind == "reader" and parts.scheme == "https" and host == OPENAI_HOST
        key = _read_api_key(variable) or (_read_api_key(OPENAI_KEY) if is_openai else None)
        if key is not None and parts.scheme == "http" and not is_loopback_host(host):
            tunnel = f"name an https:// address or a tunnel to this machine by --{kind}"
            wrong = f"the API key in {variable} would go to {url} unencrypted"
            raise UsageError(wrong, f"{tunnel}, or unset {variable}")
        return cls(url, key)

    def send_request(self, method: str, path: str, body: Any = None) -> Response:
        """Sends a request, and repeats it while the server is busy. Raises RequestException."""
        from requests import ConnectionError, Timeout

        for number in range(TRIES):
            is_last, wait = number == TRIES - 1, BACKOFF_S * 2**number
            try:
                response = self.session.request(
                    method, self.url + path, json=body, allow_redirects=False, stream=True,
                    timeout=(CONNECT_S, self.silence_s),
                )  # fmt: skip
            except ConnectionError as error:
                if is_last or isinstance(error, Timeout):
                    raise
            else:
                if is_last or response.status_code not in RETRIED:
                    return response
                response.close()
                asked = response.headers.get("retry-after", "")
                wait = float(asked) if asked.isdecimal() else wait
            time.sleep(min(wait, MAX_WAIT_S))
        raise AssertionError


def _read_api_key(variable: str) -> str | None:
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise UsageError(f"{variable} must be printable ASCII without spaces", "set the key again")
    return key or None


def read_json_body(response: Response) -> Any:
    """Reads a response's body as JSON. Raises RequestException: the connection breaks. ValueError:
    the body is not JSON, is nested too deeply, or is larger than `MAX_BODY_BYTES`."""
    data = bytearray()
    for piece in response.iter_content(1 << 16):
        data += piece
        if len(data) > MAX_BODY_BYTES:
            raise ValueError(f"the body has more than {MAX_BODY_BYTES:,} bytes")
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("the body is nested too deeply") from error


def read_refusal(response: Response) -> tuple[str, str | None]:
    """Reads the `error` object, or whatever a server sends in its place, of a refused request:
    returns the message, and the parameter to which the server objects, if any."""
    from requests import RequestException

    try:
        body = read_json_body(response)
    except (ValueError, RequestException):
        body = {}
    error = body.get("error", body) if isinstance(body, dict) else body
    error = error if isinstance(error, dict) else {"message": error}
    said = error.get("message") or error.get("detail") or response.reason
    parameter = error.get("param")
    return shorten_message(str(said)), parameter if isinstance(parameter, str) else None


def shorten_message(text: str) -> str:
    """Returns a server's message in one line of at most `MAX_MESSAGE` characters."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 1] + "…"
