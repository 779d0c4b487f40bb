"""Loads plugins (built-in methods, installed packages, files), and writes an example plugin file.

A plugin is loaded once per process, but not by a preset that names a class of the plugin."""

from __future__ import annotations

import importlib.util
import re
import sys
import traceback
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from esa_cli.errors import NOT_BLAMED, PluginError

# The built-in methods: importing a file registers its parts and recipes.
from esa_cli.methods import (  # noqa: F401
    bm25,
    consensus,
    full_attention,
    infllm,
    paper,
    per_head,
    registry,
    sentences,
    streaming,
    voting,
)
from esa_cli.system.registry import PLUGIN_PREFIX, list_entries_of_module, remove_entries_of_module


@cache
def load_installed_plugins() -> None:
    """Imports the entry points `esa.plugins`, once. Raises PluginError: one does not load."""
    for point in entry_points(group="esa.plugins"):
        try:
            point.load()
        except NOT_BLAMED:
            raise
        except BaseException as error:
            reason = error.message if isinstance(error, PluginError) else describe_error(error)
            message = f"plugin {point.name!r} ({point.value}) does not load: {reason}"
            raise PluginError(message, "update or uninstall the package of this plugin") from error


def load_file(path: str | Path) -> list[tuple[str, str]]:
    """Imports a plugin file, once per process, and returns the (kind, name) pairs that the file
    registered. Raises PluginError: the file is missing, does not run, or registers nothing."""
    path = Path(path)
    if not path.is_file():
        hint = "check the path of the plugin file, or make one with `esa plugins new`"
        raise PluginError(f"no plugin file {path}", hint)
    key = str(path.resolve())
    if registered := list_entries_of_module(key):
        return registered
    module_name = f"{PLUGIN_PREFIX}{path.stem.replace('-', '_')}_{abs(hash(key)):x}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"{path} is not a Python file", "give a plugin file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and type hints look their module up by name.
    module.__file__ = key
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
        if not list_entries_of_module(key):
            hint = 'decorate a class with @register("selector", "name"), or a function with @recipe'
            raise PluginError(f"plugin {path} registers nothing", hint)
    except BaseException as error:
        remove_entries_of_module(key)
        sys.modules.pop(module_name, None)
        if isinstance(error, (PluginError, *NOT_BLAMED)):
            raise
        hint = "mend the file in the line that the message names"
        raise PluginError(f"plugin {path} does not run: {describe_error(error)}", hint) from error
    return list_entries_of_module(key)


def describe_error(error: BaseException) -> str:
    """Returns an exception's text with its file and line, or the line that Python cannot parse."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    if isinstance(error, SyntaxError):
        where = f": {error.text.strip()}" if error.text else ""
    return f"{type(error).__name__}: {error}{where}"


MAX_NAME = 32
_SOURCE = '''"""The `@name@` selector: the middle tokens with the largest mean logit.

Check it:  esa plugins check @file@
Use it:    esa ask book.txt "..." --plugin FILE
           --set answer.from=rows --set selector.name=@name@

Scores, compressors, position encodings and recipes are registered the same way; docs/plugins.md has
all of it on one page.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from esa_cli.methods import Selector, Step, register, top_k


@register("selector", "@name@")
@dataclass(frozen=True)
class @class@(Selector):
    """The `budget` best middle tokens, by the mean over heads and current tokens.

    With `rotate` they are scored as they will be seen, at the far distance.
    """

    rotate: bool = True

    def select(self, step: Step, budget: int) -> Tensor:
        """(K,) int64 offsets into M: ascending, unique, K <= min(budget, M)."""
        scores = torch.empty(step.middle, device=step.queries.device)
        for offset, logits in step.head_logits(self.rotate):  # (H, C, n)
            scores[offset : offset + logits.shape[2]] = logits.mean(dim=(0, 1))
        return top_k(scores, budget)
'''


def write_plugin_template(name: str, folder: str | Path) -> Path:
    """Writes a plugin file with an example selector into `folder`, and returns the file's path.
    Raises PluginError: the name is invalid, the folder is missing, or the file exists."""
    if not re.fullmatch(rf"[A-Za-z][A-Za-z0-9_-]{{0,{MAX_NAME - 1}}}", name):
        hint = f"a name is one letter, then letters, digits, '-' and '_', at most {MAX_NAME} in all"
        raise PluginError(f"{name!r} cannot name a method", hint)
    registry.refuse_reserved_method_name(name)
    selectors = registry.PARTS["selector"]
    if name in selectors:
        problem = f"a selector {name!r} already exists, from {selectors.find_module(name)}"
        raise PluginError(problem, "choose another name")
    words = [word for word in re.split(r"[-_]", name) if word]
    class_name = "".join(word[0].upper() + word[1:] for word in words).removesuffix("Selector")
    path = Path(folder) / f"{name.replace('-', '_')}.py"
    source = _SOURCE.replace("@name@", name).replace("@file@", path.name)
    source = source.replace("@class@", f"{class_name}Selector")  # no name that the file imports
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(source)
    except FileExistsError as error:
        raise PluginError(f"{path} already exists", "choose another name or folder") from error
    except OSError as error:
        raise PluginError(f"cannot write {path}: {error.strerror}", "name a folder") from error
    return path
