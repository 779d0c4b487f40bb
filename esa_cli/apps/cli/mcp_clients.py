"""The files in which MCP clients (assistants and editors) list the MCP servers that they start."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tomllib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from esa_cli.errors import UsageError
from esa_cli.system.files import convert_writing_errors, replace_atomically, resolve_links

CLIENTS = ("claude-code", "claude-desktop", "codex", "cursor", "vscode")
NAME = "esa"
"""The name of our server in the lists of clients."""
_TOML_ENTRY = rf'(?ms)^[ \t]*\[mcp_servers\.(?:"{NAME}"|{NAME})(?:\.[^\]]*)?\].*?(?=^[ \t]*\[|\Z)'
Entry = dict[str, Any]


def make_server_entry(options_of_mcp: list[str]) -> Entry:
    """Returns the command that starts `esa mcp` with some options, and the variables it needs."""
    beside = shutil.which("esa", path=str(Path(sys.executable).parent))
    program = beside or shutil.which("esa")
    start = [program] if program else [sys.executable, "-m", "esa_cli"]
    # A client on the desktop does not know the variables of a shell.
    names = ("ESA_LIBRARY", "ESA_HOME")
    variables = {name: os.path.abspath(os.environ[name]) for name in names if os.environ.get(name)}
    entry: Entry = {"command": start[0], "args": [*start[1:], "mcp", *options_of_mcp]}
    return entry | ({"env": variables} if variables else {})


@dataclass(frozen=True)
class ServerList:
    """The list of MCP servers in a client's JSON or TOML file.

    Args:
        path: the file, which need not exist.
        key: the name of the list in the file.
        fields: what an entry of this client has besides the command."""

    path: Path
    key: str = "mcpServers"
    fields: Entry = field(default_factory=dict)

    @classmethod
    def find(cls, client: str) -> ServerList:
        """Finds the file for all projects of the user. `client` is one of `CLIENTS`."""
        home, variables = Path.home(), os.environ
        if client == "claude-code":
            folder = Path(variables.get("CLAUDE_CONFIG_DIR") or home)
            return cls(folder / ".claude.json", fields={"type": "stdio"})
        if client == "codex":  # whose own limit for a tool is a minute; `ingest` takes longer
            folder = Path(variables.get("CODEX_HOME") or home / ".codex")
            limits = {"startup_timeout_sec": 60, "tool_timeout_sec": 900}
            return cls(folder / "config.toml", "mcp_servers", limits)
        if client == "cursor":
            return cls(home / ".cursor/mcp.json")
        settings = Path(variables.get("XDG_CONFIG_HOME") or home / ".config")
        if sys.platform == "darwin":
            settings = home / "Library/Application Support"
        elif sys.platform == "win32":
            settings = Path(variables.get("APPDATA") or home / "AppData/Roaming")
        if client == "vscode":
            return cls(settings / "Code/User/mcp.json", "servers", {"type": "stdio"})
        return cls(settings / "Claude/claude_desktop_config.json")

    @property
    def _is_toml(self) -> bool:
        return self.path.suffix == ".toml"

    @cached_property
    def _text(self) -> str:
        try:
            return self.path.read_text("utf-8-sig") if self.path.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            raise self._make_error(f"{self.path} cannot be read: {error}") from error

    @cached_property
    def _content(self) -> dict[str, Any]:
        """The parsed file. Raises UsageError: the file has comments or is damaged."""
        try:
            content = tomllib.loads(self._text) if self._is_toml else json.loads(self._text or "{}")
        except ValueError as error:
            kind = "TOML" if self._is_toml else "JSON without comments"
            raise self._make_error(f"{self.path} is not {kind}: {error}") from error
        if not isinstance(content, dict) or not isinstance(content.get(self.key, {}), dict):
            raise self._make_error(f"{self.key} of {self.path} is no list of servers")
        return content

    @property
    def former_entry(self) -> Entry | None:
        """The entry of our name in the file. Raises UsageError: the file cannot be read."""
        found = self._content.get(self.key, {}).get(NAME)
        return found if isinstance(found, dict) else None

    def add_entry(self, entry: Entry) -> str | None:
        """Returns the file's text with our entry, or None if the file has this entry. Raises
        UsageError: the file cannot be read, or changed without a change of something else."""
        entry, content = self.fields | entry, self._content
        if self.former_entry == entry:
            return None
        expected = content | {self.key: content.get(self.key, {}) | {NAME: entry}}
        if self._is_toml:
            others = re.sub(_TOML_ENTRY, "", self._text).rstrip()
            text = f"{others}\n\n{self.format_entry(entry)}\n".lstrip()
        else:
            indent = re.search(r'\n([ \t]+)"', self._text)
            text = json.dumps(expected, indent=indent[1] if indent else 2, ensure_ascii=False)
            text += "\n"
        try:
            is_right = (tomllib if self._is_toml else json).loads(text) == expected
        except ValueError:
            is_right = False
        if not is_right:
            raise self._make_error(f"{self.path} has an entry {NAME} that cannot be replaced")
        return text

    def format_entry(self, entry: Entry) -> str:
        """Formats our entry as it stands in the file."""
        entry = self.fields | entry
        if not self._is_toml:
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

    def _make_error(self, message: str) -> UsageError:
        return UsageError(message, "add the entry by hand: docs/serve.md shows it")
