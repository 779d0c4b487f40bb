"""The address and key of a server that speaks OpenAI's chat completions."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from esa_cli.errors import UsageError
from esa_cli.system.machine import is_loopback

KEY = "ESA_READER_KEY"
"""Environment variable of the key."""
OPENAI_KEY, OPENAI_HOST = "OPENAI_API_KEY", "api.openai.com"
"""A key that is set for other programs is sent to the one server that it is of."""


@dataclass(frozen=True)
class ServerAddress:
    """The base URL of a server of OpenAI's chat completions, without a slash at its end, and the
    key that is sent to it."""

    url: str
    key: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, text: str) -> ServerAddress:
        """Raises UsageError: it is no plain web address, the key has odd characters, or would go
        unencrypted to another machine."""
        url = text.strip().rstrip("/")
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            host = None
        if "@" in url:
            hint = f"set the environment variable {KEY} to the key"
            raise UsageError("the address of --reader must have no user and password", hint)
        other = not host or any(letter.isspace() for letter in url)
        if other or parts.query or parts.fragment or url.endswith("/chat/completions"):
            raise UsageError(
                f"--reader must be a web address that /chat/completions follows, got {text!r}",
                "for example --reader http://127.0.0.1:11434/v1",
            )
        is_openai = parts.scheme == "https" and host == OPENAI_HOST
        address = cls(url, _key(KEY) or (_key(OPENAI_KEY) if is_openai else None))
        if address.key is not None and parts.scheme == "http" and not address.here:
            raise UsageError(
                f"the key in {KEY} would go to {url} unencrypted",
                f"use an https:// address or a tunnel to this machine, or unset {KEY}",
            )
        return address

    @property
    def here(self) -> bool:
        """Whether it is on this machine."""
        return is_loopback(urlsplit(self.url).hostname or "")


def _key(name: str) -> str | None:
    """The key in an environment variable. Raises UsageError: it has odd characters."""
    key = os.environ.get(name, "").strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise UsageError(f"{name} must be printable ASCII without spaces", "set it again")
    return key or None
