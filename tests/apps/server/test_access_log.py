"""The file of --log: a line for each request, without questions unless they are asked for."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from fake_asker import FakeAsker
from live_server import TOKEN, Start, until, user
from starlette.middleware import Middleware

from esa_cli.apps.cli.commands.serve_command import ServeCommandOptions, check_serve_options
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.apps.server.access_log import AccessLogMiddleware
from esa_cli.errors import UsageError


def log_into(file: Any, with_questions: bool, warnings: list[str]) -> Middleware:
    return Middleware(
        AccessLogMiddleware, file=file, with_questions=with_questions, warn=warnings.append
    )


@pytest.mark.parametrize("with_questions", [False, True])
def test_lines(start: Start, asker: FakeAsker, with_questions: bool) -> None:
    file = io.StringIO()
    live = start(token=TOKEN, access_log=log_into(file, with_questions, []))
    key = {"Authorization": f"Bearer {TOKEN}"}
    asker.failures["bad"] = ValueError("bug")
    assert live.raw("GET", "/v1/documents/text?document=secret.txt")[0] == 401
    assert live.post(user("one two"), **key)[0] == 200
    live.post({**user("two"), "stream": True}, **key)
    live.post({**user("bad"), "stream": True}, **key)
    assert live.raw("GET", "/" + "x" * 3000 + "%0A", **key)[0] == 404
    until(lambda: file.getvalue().count("\n") == 5)
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    chat = "POST /v1/chat/completions"
    assert [(one["route"], one["status"], one["tokens"]) for one in lines[:3]] == [
        ("GET /v1/documents/text", 401, None), (chat, 200, 4), (chat, 200, 3),
    ]  # fmt: skip
    assert lines[3]["status"] >= 500
    assert len(lines[4]["route"]) < 300
    assert all(one["client"] == "127.0.0.1" and one["seconds"] >= 0 for one in lines)
    questions = [one.get("question") for one in lines[1:3]]
    assert questions == (["one two", "two"] if with_questions else [None, None])
    assert ("one two" in file.getvalue()) == with_questions
    assert TOKEN not in file.getvalue()
    assert "secret" not in file.getvalue()


def test_a_log_that_cannot_be_written_ends_no_request(start: Start) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    warnings: list[str] = []
    live = start(access_log=log_into(Full(), False, warnings))
    for _ in range(3):
        assert live.raw("GET", "/health")[0] == 200
    until(lambda: warnings)
    assert len(warnings) == 1


def test_the_file_is_added_to_and_private(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.touch(mode=0o600)
    path.write_text("before\n", "utf-8")
    for _ in range(2):
        with ServeCommandOptions(log=path).open_access_log(Reporter(True)) as middleware:
            middleware.kwargs["file"].write("line\n")
    assert path.read_text("utf-8") == "before\nline\nline\n"
    other = tmp_path / "new.log"
    with ServeCommandOptions(log=other).open_access_log(Reporter(True)):
        assert other.stat().st_mode & 0o077 == 0
    with (
        pytest.raises(UsageError),
        ServeCommandOptions(log=tmp_path / "no/x").open_access_log(Reporter(True)),
    ):
        pass
    with pytest.raises(UsageError):
        check_serve_options(ServeCommandOptions(log_questions=True))
