"""The page as it is sent: its policy, what is in it, who may open it. No browser needed."""

from __future__ import annotations

import base64
import hashlib
import re

from live_server import LiveServer


def content(html: str, tag: str) -> str:
    """What is inside the only element of this tag."""
    (found,) = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
    return str(found)


def test_the_policy_names_what_is_in_the_page(live: LiveServer) -> None:
    status, headers, html = live.raw("GET", "/")
    assert (status, headers.get_content_type()) == (200, "text/html")
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    for kind in ("style", "script"):
        digest = hashlib.sha256(content(html, kind).encode()).digest()
        encoded = base64.b64encode(digest).decode()
        assert policy[f"{kind}-src"] == f"'sha256-{encoded}'"
    assert policy["default-src"] == policy["frame-ancestors"] == policy["form-action"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-content-type-options"] == "nosniff"
