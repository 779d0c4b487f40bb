"""The command `esa mcp`, a Model Context Protocol (MCP) server, and its entry in MCP clients."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

from esa_cli.apps.cli.commands.serve_command import Allow, check_mcp_sdk_version
from esa_cli.apps.cli.mcp_clients import CLIENTS, install_server_entry
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.command_help import argument, option
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.errors import UsageError
from esa_cli.qa.api import Esa
from esa_cli.storage.library import Library


def complete_action(typed_text: str) -> list[str]:
    return [one for one in ("install", "skill", *CLIENTS) if one.startswith(typed_text)]


@options.make_typer_command
def mcp(
    action: Annotated[
        list[str] | None,
        argument(
            "[install CLIENT|skill]",
            f"Write an entry that starts `esa mcp` with these options, where CLIENT finds it "
            f"({', '.join(CLIENTS)}); or print a SKILL.md for agents.",
            autocompletion=complete_action,
        ),
    ] = None,
    *,
    context: typer.Context,
    allow: Allow = None,
    yes: Annotated[bool, option("--yes -y", "Write the entry without asking.")] = False,
    model: options.AnswerModelOptions,
    quiet: options.Quiet = False,
) -> None:
    """Serve the library to assistants and editors (MCP).

    Programs that speak the Model Context Protocol start this command themselves, and communicate
    with it over the standard streams. `esa mcp install codex` tells Codex how to start it."""
    if action == ["skill"]:
        print((files("esa_cli.apps.server") / "SKILL.md").read_text("utf-8"), end="")
        return
    check_mcp_sdk_version()
    chosen, reader = model.load_preset(), model.choose_reader()
    if action:
        if len(action) != 2 or action[0] != "install" or action[1] not in CLIENTS:
            known = f"install CLIENT or skill, got {' '.join(action)}"
            hint = f"CLIENT is one of {', '.join(CLIENTS)}"
            raise UsageError(f"the action of `esa mcp` must be {known}", hint)
        install_server_entry(action[1], _list_given_options(context), yes)
        return
    gc.enable()
    from esa_cli.apps.server import mcp_server
    from esa_cli.apps.server.allowed_documents import AllowedDocuments

    with Reporter(quiet) as reporter, ExitStack() as stack:

        def load_model() -> Esa:
            from esa_cli.apps.cli.model_and_documents import open_model
            from esa_cli.qa.opening import can_model_run_methods, choose_answer_source

            library, preset = Library(), choose_answer_source(chosen, reporter)
            # A token index is stored by default; a disk that is full later is no error then.
            has_rows = preset.answer.needs_kv_cache or not preset.answer.makes_token_index
            stores = has_rows and (
                not preset.answer.finds_by_bm25_only or can_model_run_methods(preset, reporter)
            )
            keep = True if stores and library.is_writable else None
            return stack.enter_context(
                open_model(preset, model, reporter, keep=keep, library=library, reader=reader)
            )

        documents = AllowedDocuments(
            mcp_server.make_lazily_loaded_esa(load_model), [], allow or [], Library(),
            with_library=True, max_opened=chosen.answer.documents,
        )  # fmt: skip
        tools = mcp_server.McpDocumentTools(documents, chosen, model, reporter)
        if sys.stdin.isatty():
            reporter.show_note("esa: waiting for a client on standard input; see docs/serve.md")
        mcp_server.serve_mcp_on_standard_streams(tools)


def _list_given_options(context: typer.Context) -> list[str]:
    """Lists the options of the command line but --yes as words, with absolute paths."""
    words = list[str]()
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        flag = max(parameter.opts, key=len)
        if source is None or source.name != "COMMANDLINE" or flag in ("action", "--yes"):
            continue
        value: Any = context.params[str(parameter.name)]
        for one in value if isinstance(value, list | tuple) else [value]:
            is_path = isinstance(one, Path) or (os.sep in str(one) and os.path.exists(one))
            shown = os.path.abspath(one) if is_path else str(one)
            words += [flag] if isinstance(one, bool) else [flag, shown]
    return words
