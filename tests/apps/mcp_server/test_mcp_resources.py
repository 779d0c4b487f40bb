"""Stored documents as resources."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp_client import talk

from esa_cli.apps.mcp_server import mcp_app
from esa_cli.apps.mcp_server.document_tools import DocumentTools
from esa_cli.storage.library import Library


def read(tools: DocumentTools, uri: str) -> Any:
    async def ask(client: Client) -> Any:
        return (await client.read_resource(uri)).contents

    return talk(tools, ask)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_stored_documents_are_listed_page_by_page(
    tools: DocumentTools, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(mcp_app, "PAGE", 1)

    async def pages(client: Client) -> Any:
        first = await client.list_resources()
        second = await client.list_resources(cursor=first.next_cursor)
        templates = await client.list_resource_templates()
        return [*first.resources, *second.resources], second.next_cursor, templates

    found, cursor, templates = talk(tools, pages, mode)
    assert [one.name for one in found] == ["pages.html", "gate.txt"]
    assert cursor is None
    assert templates.resource_templates[0].uri_template == "esa://documents/{id}/text/{piece}"


def test_facts_and_text_in_pieces(
    tools: DocumentTools, library: Library, gate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = library.text(library.matches(gate)[0])
    monkeypatch.setattr(mcp_app, "PIECE", 1000)
    about, first = read(tools, f"esa://documents/{gate}")
    facts = json.loads(about.text)
    assert (facts["document"], facts["characters"]) == ("gate.txt", len(text))
    assert first.uri == f"esa://documents/{gate}/text/1"
    pieces = [
        read(tools, f"esa://documents/{gate}/text/{number}")[0].text
        for number in range(1, facts["pieces"] + 1)
    ]
    assert "".join(pieces) == text
    assert first.text == pieces[0]


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("esa://documents/nothing", "there is no resource"),
        ("file:///etc/passwd", "there is no resource"),
        ("esa://documents/gate.txt/text/9", "piece must be from 1 to 1, got 9"),
        ("esa://documents/..%2Fgate.txt", "there is no resource"),
    ],
)
def test_resources_that_are_not_there(tools: DocumentTools, uri: str, message: str) -> None:
    with pytest.raises(MCPError, match=message):
        read(tools, uri)


def test_a_cursor_of_another_list(tools: DocumentTools) -> None:
    with pytest.raises(MCPError, match="cursor must be one of this list"):
        talk(tools, lambda client: client.list_resources(cursor="x"))
