"""`esa mcp install`: the entry of our server in the files of assistants and editors."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml
from command import ROOT, Esa, fail
from mcp import Client, StdioServerParameters

from esa_cli.__main__ import main
from esa_cli.apps.cli.mcp_clients import CLIENTS

FILES = {
    "claude-code": (".claude.json", "mcpServers"),
    "claude-desktop": (".config/Claude/claude_desktop_config.json", "mcpServers"),
    "codex": (".codex/config.toml", "mcp_servers"),
    "cursor": (".cursor/mcp.json", "mcpServers"),
    "vscode": (".config/Code/User/mcp.json", "servers"),
}
OTHERS = {"notes": {"command": "notes", "args": ["--all", "größer"]}}
TOML = """# mine
model = "a"

[mcp_servers.notes]
command = "notes"
args = ["--all", "größer"]  # all

[mcp_servers.esa.env]
ESA_HOME = "/old"

[mcp_servers.esa]
command = "old"
args = [
  "mcp",
]
[profiles.b]
model = "c"
"""


@pytest.fixture(autouse=True)
def home(surroundings: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder on Linux, without variables of clients and of `esa`."""
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CONFIG_HOME", "ESA_LIBRARY", "ESA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    return tmp_path


def parse(path: Path) -> dict[str, Any]:
    text = path.read_text("utf-8")
    return tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)


def test_each_client_has_a_place() -> None:
    assert set(CLIENTS) == set(FILES)


@pytest.mark.parametrize("action", ["install", "instal codex", "install emacs", "skill codex"])
def test_an_incomplete_action_names_what_is_missing(esa: Esa, home: Path, action: str) -> None:
    said = esa("mcp", *action.split())
    fail(said, 2, "must be install CLIENT or skill", f"got {action}", *CLIENTS)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_new_file(esa: Esa, home: Path, client: str) -> None:
    (home / "papers").mkdir()
    result = esa("mcp", "install", client, "--allow", "papers", "--preset", "chat", "--yes")
    assert result.code == 0, result.err
    name, key = FILES[client]
    (server,) = parse(home / name)[key].values()
    assert server["args"][-5:] == ["mcp", "--allow", str(home / "papers"), "--preset", "chat"]
    assert os.access(server["command"], os.X_OK)
    assert server["command"] in result.out
    assert str(home / name) in result.out


@pytest.mark.process
def test_a_start_by_python_imports_nothing_from_a_client_s_folder(
    esa: Esa, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    assert esa("mcp", "install", "cursor", "--yes").code == 0
    (server,) = parse(home / FILES["cursor"][0])["mcpServers"].values()
    (home / "esa_cli.py").write_text("raise SystemExit(9)")
    start = [server["command"], *server["args"], "--help"]
    assert subprocess.run(start, cwd=home, capture_output=True).returncode == 0


@pytest.mark.parametrize("client", [one for one in CLIENTS if one != "codex"])
def test_nothing_else_in_a_json_file_changes(esa: Esa, home: Path, client: str) -> None:
    name, key = FILES[client]
    path = home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    before = {"first": [1.5, None, "ä"], key: OTHERS, "last": {"x": {}}}
    path.write_text(json.dumps(before, indent="\t"), "utf-8")
    path.chmod(0o640)
    assert esa("mcp", "install", client, "--yes").code == 0
    after = parse(path)
    assert after[key].pop("esa")["args"][-1] == "mcp"
    assert after == before
    assert list(after) == list(before)
    assert '\n\t"first"' in path.read_text("utf-8")
    assert path.stat().st_mode & 0o777 == 0o640
    written = path.read_bytes()
    again = esa("mcp", "install", client)
    assert (again.code, path.read_bytes()) == (0, written)
    assert "already" in again.out


def test_nothing_else_in_a_toml_file_changes(esa: Esa, home: Path) -> None:
    path = home / ".codex/config.toml"
    path.parent.mkdir()
    path.write_text(TOML, "utf-8")
    assert esa("mcp", "install", "codex", "--yes").code == 0
    before, after = tomllib.loads(TOML), parse(path)
    former, new = before["mcp_servers"].pop("esa"), after["mcp_servers"].pop("esa")
    assert former["command"] == "old"
    assert new["args"][-1] == "mcp"
    assert "env" not in new
    assert after == before
    for comment in ("# mine", "# all"):
        assert comment in path.read_text("utf-8")


@pytest.mark.parametrize(
    ("client", "text"),
    [
        ("vscode", '{"servers": {} // mine\n}'),
        ("cursor", '{"mcpServers": []}'),
        ("claude-code", "\xff"),
        ("codex", "[mcp_servers"),
        ("codex", 'mcp_servers = { esa = { command = "x" } }'),
    ],
)
def test_a_file_that_cannot_be_changed_stays(esa: Esa, home: Path, client: str, text: str) -> None:
    path = home / FILES[client][0]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("latin-1"))
    fail(esa("mcp", "install", client, "--yes"), 2, path.name, "docs/serve.md")
    assert path.read_bytes() == text.encode("latin-1")


def test_a_link_stays_a_link(esa: Esa, home: Path) -> None:
    (home / "dotfiles").mkdir()
    (home / "dotfiles/claude.json").write_text("{}", "utf-8")
    (home / ".claude.json").symlink_to("dotfiles/claude.json")
    assert esa("mcp", "install", "claude-code", "--yes").code == 0
    assert (home / ".claude.json").is_symlink()
    assert "esa" in parse(home / "dotfiles/claude.json")["mcpServers"]


def test_nothing_is_written_unasked(esa: Esa, home: Path) -> None:
    result = esa("mcp", "install", "cursor")
    assert (result.code, (home / ".cursor").exists()) == (2, False)
    assert "--yes" in result.err
    fail(esa("mcp", "install", "emacs"), 2, "emacs", "vscode")
    fail(esa("mcp", "install"), 2, "vscode")
    fail(esa("mcp", "install", "codex", "--preset", "nothing", "--yes"), 4, "nothing")


def test_the_skill_has_the_fields_of_skills(esa: Esa) -> None:
    begin, head, body = esa("mcp", "skill").out.split("---\n", 2)
    facts = yaml.safe_load(head)
    assert (begin, facts["name"]) == ("", "esa")
    assert 1 <= len(facts["description"]) <= 1024
    for tool in ("list", "find", "show", "ask", "ingest"):
        assert f"`{tool}`" in body


@pytest.mark.process
def test_the_entry_starts_a_server(esa: Esa, home: Path) -> None:
    assert esa("mcp", "install", "cursor", "--allow", ".", "--yes").code == 0
    entry = parse(home / ".cursor/mcp.json")["mcpServers"]["esa"]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    server = StdioServerParameters(**entry, env=variables, cwd="/")

    async def look() -> Any:
        async with Client(server, read_timeout_seconds=90) as client:
            return (await client.call_tool("list")).structured_content

    assert anyio.run(look)["folders"] == [str(home)]


def test_tab_completes_actions_and_clients(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    every = {"install", "skill", *CLIENTS}
    for words, want in (("esa mcp s", {"skill"}), ("esa mcp install ", every)):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        monkeypatch.setenv("_ESA_COMPLETE", "complete_bash")
        with pytest.raises(SystemExit):
            main([])
        assert set(capsys.readouterr().out.split()) == want
