"""Loads plugins: the built-in methods, installed packages and plugin files.

The command line, `qa.presets.resolved_preset`, and the conformance suite call it; each plugin is
loaded once. A preset names parts of plugins and never loads one.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from esa_cli.attention.plugin_errors import refuse_closed_streams
from esa_cli.errors import NOT_BLAMED, PluginError

# The built-in methods: importing a file registers its parts and recipes.
from esa_cli.methods import (  # noqa: F401
    bm25,
    consensus,
    full_attention,
    fused_consensus,
    infiniretri,
    infllm,
    lm_infinite,
    loki,
    ntk,
    paper,
    quest,
    recontext,
    rerope,
    rope_interpolation,
    streaming_llm,
    tokenselect,
    voting,
    whole_sentences,
    yarn,
)
from esa_cli.system.registry import PLUGIN_PREFIX, entries_from, remove_entries


@cache
def load_installed() -> None:
    """Imports every module named under the entry-point group `esa.plugins`, once a process.

    Raises:
        PluginError: one does not load; it names the plugin.
    """
    for point in entry_points(group="esa.plugins"):
        try:
            point.load()
            refuse_closed_streams(f"plugin {point.name!r}")
        except NOT_BLAMED:
            raise
        except BaseException as error:
            reason = error.message if isinstance(error, PluginError) else _reason(error)
            raise PluginError(
                f"plugin {point.name!r} ({point.value}) does not load: {reason}",
                "update or uninstall the package it comes from",
            ) from error


def load_file(path: str | Path) -> list[tuple[str, str]]:
    """Imports a plugin file and returns the (kind, name) pairs it registered.

    A file is run once in a process; a file that failed has registered nothing and may be retried.

    Raises:
        PluginError: the file is missing, does not run, or registers nothing.
    """
    path = Path(path)
    if not path.is_file():
        raise PluginError(f"no plugin file {path}", "check the path; `esa plugins new` writes one")
    key = str(path.resolve())
    if entries_from(key):
        return entries_from(key)
    module_name = f"{PLUGIN_PREFIX}{path.stem.replace('-', '_')}_{abs(hash(key)):x}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"{path} is not a Python file", "a plugin file ends in .py")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and type hints look their module up by name.
    module.__file__ = key
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
        refuse_closed_streams(f"plugin {path}")
        if not entries_from(key):
            raise PluginError(
                f"plugin {path} registers nothing",
                'decorate a class with @register("selector", "name"), or a function with @recipe',
            )
    except BaseException as error:
        remove_entries(key)
        sys.modules.pop(module_name, None)
        if isinstance(error, (PluginError, *NOT_BLAMED)):
            raise
        raise PluginError(
            f"plugin {path} does not run: {_reason(error)}",
            f"`esa plugins check {path}` shows more",
        ) from error
    return entries_from(key)


def _reason(error: BaseException) -> str:
    """The error, and the line of the plugin it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{'' if isinstance(error, SyntaxError) else where}"
