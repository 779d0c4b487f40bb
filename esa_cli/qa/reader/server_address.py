"""The address and key of a server that speaks OpenAI's chat completions."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from esa_cli.errors import UsageError
from esa_cli.system.loopback import is_loopback

KEYS = ("ESA_READER_KEY", "OPENAI_API_KEY")
"""Environment variables of the key, the first that is set."""
EXAMPLE = "for example --reader http://127.0.0.1:11434/v1"


def is_address(text: str) -> bool:
    """Whether a reader is named by a web address."""
    return text.strip().lower().startswith(("http://", "https://"))


@dataclass(frozen=True)
class ServerAddress:
    """The base URL of a server, without a slash at its end, and the key that it is shown."""

    url: str
    key: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, text: str) -> ServerAddress:
        """Raises UsageError: it is no plain web address, or the key has odd characters."""
        url = text.strip().rstrip("/")
        try:
            parts = urlsplit(url)
            named, _ = parts.hostname, parts.port
        except ValueError as error:
            raise UsageError(f"--reader must be a web address, got {text!r}", EXAMPLE) from error
        if not named or any(letter.isspace() for letter in url):
            raise UsageError(f"--reader must be a web address, got {text!r}", EXAMPLE)
        if parts.username is not None or parts.password is not None:
            raise UsageError(
                "the address of --reader must have no user and password",
                f"set the environment variable {KEYS[0]} to the key",
            )
        if parts.query or parts.fragment or url.endswith("/chat/completions"):
            raise UsageError(
                f"--reader must be the address that /chat/completions follows, got {text!r}",
                EXAMPLE,
            )
        return cls(url, _key())

    @property
    def here(self) -> bool:
        """Whether it is on this machine."""
        return is_loopback(urlsplit(self.url).hostname or "")


def _key() -> str | None:
    for name in KEYS:
        if key := os.environ.get(name, "").strip():
            if not (key.isascii() and key.isprintable()) or " " in key:
                raise UsageError(f"{name} must be printable ASCII without spaces", "set it again")
            return key
    return None
