"""HTTP to a server of chat completions: time limits, and tries again where that may help.

refused, broken before an answer, 429, 500, 502, 503    up to 3 more tries, after 0, 1 and 2 s,
                                                        or as long as Retry-After says, to 30 s
silent for longer than the time limit                   no other try
"""

from __future__ import annotations

from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import ReadTimeoutError
from urllib3.util.retry import Retry

from esa_cli.qa.second_model.server_address import ServerAddress

CONNECT_S = 10.0
TRIES = 3
"""Further tries."""
BACKOFF_S = 0.5
LONGEST_WAIT_S = 30.0
AGAIN = (429, 500, 502, 503)
USER_AGENT = "esa-cli"


class PatientRetry(Retry):
    """urllib3's tries, which also try a POST again, but nothing that took too long."""

    def increment(self, *given: Any, **named: Any) -> PatientRetry:
        error = named.get("error")
        if isinstance(error, ReadTimeoutError):
            raise error
        return super().increment(*given, **named)

    def get_retry_after(self, response: Any) -> float | None:
        seconds = super().get_retry_after(response)
        return None if seconds is None else min(seconds, LONGEST_WAIT_S)


class ShownKey(requests.auth.AuthBase):
    """The key as a bearer token; without one no other login, as of ~/.netrc, is sent."""

    def __init__(self, key: str | None) -> None:
        self.key = key

    def __call__(self, request: Any) -> Any:
        if self.key is not None:
            request.headers["Authorization"] = f"Bearer {self.key}"
        return request


class ServerConnection:
    """Requests to one server.

    Args:
        silence_s: the longest wait for its next words.
    """

    def __init__(self, address: ServerAddress, silence_s: float) -> None:
        self.address, self.silence_s = address, silence_s
        self._session = requests.Session()
        self._session.trust_env = not address.here  # a proxy is not for this machine's own server
        self._session.auth = ShownKey(address.key)
        self._session.headers["User-Agent"] = USER_AGENT
        retry = PatientRetry(
            total=TRIES, status_forcelist=AGAIN, allowed_methods=None, raise_on_status=False,
            backoff_factor=BACKOFF_S, redirect=False,
        )  # fmt: skip
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(max_retries=retry))

    def get(self, path: str) -> requests.Response:
        """Raises requests.RequestException."""
        return self._send("GET", path)

    def post(self, path: str, body: dict[str, Any]) -> requests.Response:
        """The response, whose body is read as it comes. Raises requests.RequestException."""
        return self._send("POST", path, json=body, stream=True)

    def close(self) -> None:
        """Ends open connections."""
        self._session.close()

    def _send(self, method: str, path: str, **more: Any) -> requests.Response:
        return self._session.request(
            method, self.address.url + path, allow_redirects=False,
            timeout=(CONNECT_S, self.silence_s), **more,
        )  # fmt: skip
