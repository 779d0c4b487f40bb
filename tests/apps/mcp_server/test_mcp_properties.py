"""Random messages of MCP clients: each has an answer, and no answer is a bug."""

from __future__ import annotations

import io
import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from mcp.types import jsonrpc_message_adapter
from mcp_client import call, text_of
from properties import NUMBERS, trees

from esa_cli.apps.server.mcp_server import BUG, McpDocumentTools, McpMessageLines
from esa_cli.system.text import replace_lone_surrogates

NAMES = ["query", "question", "documents", "document", "limit", "offset", "containing", "skip"]


@given(trees(NAMES))
@example({"query": "half an emoji: \ud83d"})
@example({"\ud800": ["\udfff", "\\ud800", "\U0001f600"]})
def test_the_sdk_parses_each_line(arguments: Any) -> None:
    params = {"name": "find", "arguments": {"query": arguments}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    line = McpMessageLines(io.BytesIO(json.dumps(message).encode() + b"\n")).readline()
    found = jsonrpc_message_adapter.validate_json(line, by_name=False)
    expected = json.dumps(replace_lone_surrogates(params), sort_keys=True)
    assert json.dumps(found.params, sort_keys=True) == expected  # type: ignore[union-attr]


@given(
    st.text(max_size=20) | st.sampled_from([r'{"\ud800', r"\ud800" * 9, "[" * 100_000 + r"\ud8"])
)
def test_lines_that_are_no_json_stay(line: str) -> None:
    data = line.encode("utf-8") + b"\n"
    lines = McpMessageLines(io.BytesIO(data), encoding="utf-8", newline="")
    assert "".join(iter(lines.readline, "")) == data.decode()


ARGUMENTS: dict[str, st.SearchStrategy[Any]] = {
    name: trees(NAMES) | NUMBERS | st.lists(st.text(max_size=5)) for name in NAMES
}


def test_any_arguments_have_a_result(tools: McpDocumentTools) -> None:
    @given(
        st.sampled_from(["find", "ask", "ingest", "list", "show"]),
        st.fixed_dictionaries({}, optional=ARGUMENTS),
    )
    @example("show", {"document": "loom.txt", "offset": 10**400})
    @example("find", {"query": "\0", "documents": ["\0", "../x", "a" * 4096]})
    def ask(name: str, arguments: dict[str, Any]) -> None:
        result = call(tools, name, **replace_lone_surrogates(arguments))
        assert BUG not in text_of(result)

    ask()
