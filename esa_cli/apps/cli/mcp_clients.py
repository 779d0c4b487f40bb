"""The files in which MCP clients (assistants and editors) list the MCP servers that they start."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from esa_cli.apps.cli.options.options import ask_to_confirm
from esa_cli.errors import UsageError
from esa_cli.system.files import convert_writing_errors, replace_atomically, resolve_links

CLIENTS = ("claude-code", "claude-desktop", "codex", "cursor", "vscode")
NAME = "esa"
"""The name of our server in the lists of clients."""
_TOML_ENTRY = rf'(?ms)^[ \t]*\[mcp_servers\.(?:"{NAME}"|{NAME})(?:\.[^\]]*)?\].*?(?=^[ \t]*\[|\Z)'
_HINT = "add the entry by hand: docs/serve.md shows it"
Entry = dict[str, Any]


class ServerList(NamedTuple):
    """The list of MCP servers in a client's JSON or TOML file, which need not exist. The list has
    the name `key` in the file; `fields` is what an entry of this client has besides the command."""

    path: Path
    key: str
    fields: Entry

    @classmethod
    def find(cls, client: str) -> ServerList:
        """Finds the file for all projects of the user. `client` is one of `CLIENTS`."""
        home, variables = Path.home(), os.environ
        if client == "claude-code":
            folder = Path(variables.get("CLAUDE_CONFIG_DIR") or home)
            return cls(folder / ".claude.json", "mcpServers", {"type": "stdio"})
        if client == "codex":  # whose own limit for a tool is a minute; `ingest` takes longer
            folder = Path(variables.get("CODEX_HOME") or home / ".codex")
            limits = {"startup_timeout_sec": 60, "tool_timeout_sec": 900}
            return cls(folder / "config.toml", "mcp_servers", limits)
        if client == "cursor":
            return cls(home / ".cursor/mcp.json", "mcpServers", {})
        settings = Path(variables.get("XDG_CONFIG_HOME") or home / ".config")
        if sys.platform == "darwin":
            settings = home / "Library/Application Support"
        elif sys.platform == "win32":
            settings = Path(variables.get("APPDATA") or home / "AppData/Roaming")
        if client == "vscode":
            return cls(settings / "Code/User/mcp.json", "servers", {"type": "stdio"})
        return cls(settings / "Claude/claude_desktop_config.json", "mcpServers", {})

    @property
    def is_toml(self) -> bool:
        return self.path.suffix == ".toml"

    def read(self) -> tuple[str, dict[str, Any]]:
        """Returns the file's text and content. Raises UsageError: it has comments or is damaged."""
        kind = "TOML" if self.is_toml else "JSON without comments"
        try:
            text = self.path.read_text("utf-8-sig") if self.path.exists() else ""
            content = tomllib.loads(text) if self.is_toml else json.loads(text or "{}")
        except (OSError, ValueError) as error:
            raise UsageError(f"{self.path} cannot be read as {kind}: {error}", _HINT) from error
        if not isinstance(content, dict) or not isinstance(content.get(self.key, {}), dict):
            raise UsageError(f"{self.key} of {self.path} is no list of servers", _HINT)
        return text, content

    def replace_entry(self, text: str, content: dict[str, Any], entry: Entry) -> str:
        """Returns the text with another entry of ours. Raises UsageError: more would change."""
        expected = content | {self.key: content.get(self.key, {}) | {NAME: entry}}
        if self.is_toml:
            others = re.sub(_TOML_ENTRY, "", text).rstrip()
            text = f"{others}\n\n{self.format_entry(entry)}\n".lstrip()
        else:
            indent = re.search(r'\n([ \t]+)"', text)
            text = json.dumps(expected, indent=indent[1] if indent else 2, ensure_ascii=False)
            text += "\n"
        with suppress(ValueError):
            if (tomllib if self.is_toml else json).loads(text) == expected:
                return text
        raise UsageError(f"{self.path} has an entry {NAME} that cannot be replaced", _HINT)

    def format_entry(self, entry: Entry) -> str:
        """Formats our entry as the file has it."""
        if not self.is_toml:
            return json.dumps({self.key: {NAME: entry}}, indent=2, ensure_ascii=False)
        rows = [f"[{self.key}.{NAME}]"]
        for name, value in entry.items():
            written = json.dumps(value, ensure_ascii=False)
            if isinstance(value, dict):
                pairs = (f"{k} = {json.dumps(v, ensure_ascii=False)}" for k, v in value.items())
                written = f"{{ {', '.join(pairs)} }}"
            rows.append(f"{name} = {written}")
        return "\n".join(rows)

    def write(self, text: str) -> None:
        """Replaces the file's text, and keeps its rights. Raises UsageError."""
        path = Path(resolve_links(self.path))  # the file may be a link to one under version control
        hint = "check the rights of the file and its folder"
        with convert_writing_errors(path, hint, hint, other_error=UsageError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with replace_atomically(path, durable=True) as part:
                part.touch(mode=path.stat().st_mode & 0o777 if path.exists() else 0o600)
                part.write_text(text, "utf-8")


def install_server_entry(client: str, options_of_mcp: list[str], is_confirmed: bool) -> None:
    """Shows the entry of `esa mcp` for a client, and writes it after a confirmation. Raises
    UsageError: nobody can confirm, or the client's file cannot be changed."""
    servers = ServerList.find(client)
    beside = shutil.which("esa", path=str(Path(sys.executable).parent))
    program = beside or shutil.which("esa")
    start = [program] if program else [sys.executable, "-P", "-m", "esa_cli"]
    entry = {**servers.fields, "command": start[0], "args": [*start[1:], "mcp", *options_of_mcp]}
    # A client on the desktop does not know the variables of a shell.
    given = {name: os.environ.get(name) for name in ("ESA_LIBRARY", "ESA_HOME")}
    if variables := {name: os.path.abspath(path) for name, path in given.items() if path}:
        entry["env"] = variables
    text, content = servers.read()
    former = content.get(servers.key, {}).get(NAME)
    changed = "" if former == entry else servers.replace_entry(text, content, entry)
    print(f"{servers.path}:\n{servers.format_entry(entry)}")
    if former == entry:
        print("the file has this entry already")
        return
    if isinstance(former, dict):
        print(f"in place of:\n{servers.format_entry(former)}")
    ask_to_confirm(f"the change of {servers.path}", "Write this entry?", is_confirmed)
    servers.write(changed)
    print(f"written; {client} starts esa after its next start")
