"""The page as it is sent: its policy, what is in it, who may open it. No browser needed."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from importlib.resources import files

import pytest
from live_server import TOKEN, LiveServer, Start

from esa_cli.apps.server.question_page import FOLDER, SCRIPTS, make_page


class PageParser(HTMLParser):
    """Its tags, ids, labels, and the contents of style and script."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {"style": [], "script": []}
        self._tag = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._tag = tag

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""

    def handle_data(self, data: str) -> None:
        if self._tag in self.inside:
            self.inside[self._tag].append(data)

    def ids(self) -> list[str]:
        return [named["id"] or "" for _, named in self.tags if "id" in named]


@pytest.fixture(scope="module")
def page() -> PageParser:
    return PageParser(make_page()[0])


def test_the_policy_names_what_is_in_the_page(live: LiveServer) -> None:
    status, headers, html = live.raw("GET", "/")
    assert (status, headers.get_content_type()) == (200, "text/html")
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    page = PageParser(html)
    for kind in ("style", "script"):
        (content,) = page.inside[kind]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert policy[f"{kind}-src"] == f"'sha256-{digest}'"
    assert policy["default-src"] == policy["frame-ancestors"] == policy["form-action"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-content-type-options"] == "nosniff"


def test_it_loads_nothing_and_has_no_handlers(page: PageParser) -> None:
    for tag, named in page.tags:
        assert not [name for name in named if name.startswith("on") or name == "style"], tag
        assert "src" not in named
        assert (named.get("href") or "#").startswith(("#", "data:image/svg+xml,"))
    assert "@script@" not in make_page()[0]
    assert "@version@" not in make_page()[0]


def test_no_script_makes_elements_from_text() -> None:
    folder = files("esa_cli.apps.server").joinpath(FOLDER)
    names = {one.name for one in folder.iterdir() if one.name.endswith(".js")}
    assert names == set(SCRIPTS)
    for name in SCRIPTS:
        text = folder.joinpath(name).read_text("utf-8")
        found = re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
        assert found == []
        assert "</script" not in text
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "").replace("https", "http")


def test_who_may_open_it(start: Start) -> None:
    live = start()
    assert live.raw("GET", "/", Host="evil.org")[0] == 403
    assert live.raw("GET", "/", Origin="https://evil.org")[0] == 403
    cross = {"Sec-Fetch-Site": "cross-site"}
    assert live.raw("GET", "/", **cross)[0] == 403
    assert live.raw("GET", "/", **cross, **{"Sec-Fetch-Mode": "navigate"})[0] == 200
    live = start(token=TOKEN)
    status, _, html = live.raw("GET", "/")
    assert status == 200, "it has nothing of the documents, and asks for the token itself"
    assert TOKEN not in html
    assert live.raw("GET", "/v1/models")[0] == 401
