"""The page as it is sent: its policy, what is in it, who may open it. No browser needed."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files

from live_server import LiveServer

from esa_cli.apps.server.server_app import SCRIPTS, make_browser_page


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


def test_it_loads_nothing_and_has_no_handlers() -> None:
    html = make_browser_page()[0]
    markup = html.replace(content(html, "script"), "").replace(content(html, "style"), "")
    assert not re.findall(r"\s(?:src|style|on\w+)=", markup)
    assert all(
        link.startswith(("#", "data:image/svg")) for link in re.findall(r'href="([^"]+)', markup)
    )
    assert "@" not in markup, "nothing is left to fill in"
    wanted = set(re.findall(r'byId\("([\w-]+)"\)', content(html, "script")))
    assert wanted <= set(re.findall(r'\sid="([\w-]+)"', markup))


def test_no_script_makes_elements_from_text() -> None:
    folder = files("esa_cli.apps.server").joinpath("page_files")
    names = {one.name for one in folder.iterdir() if one.name.endswith(".js")}
    assert names == set(SCRIPTS)
    for name in SCRIPTS:
        text = folder.joinpath(name).read_text("utf-8")
        found = re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
        assert found == []
        assert "</script" not in text
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "").replace("https", "http")
