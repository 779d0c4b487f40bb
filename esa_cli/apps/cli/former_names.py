"""Short and former names of options and commands: `--set` and today's names in their place."""

from __future__ import annotations

import os
import sys

from esa_cli.apps.cli.cli_app import COMMANDS
from esa_cli.errors import UsageError

SHORT = {"--dtype": "dtype=", "--cache": "cache=", "--plugin": "plugin="}
"""Options that are short for a setting of the run, on every command with `--set`."""
SETTINGS = {
    "--answer": ("answer.form=",),
    "--no-adapter": ("answer.adapter=null",),
    "--selector": ("answer.from=rows", "selector.name="),
    "--score": ("answer.from=rows", "score.name="),
    "--position": ("answer.from=rows", "position.name="),
}
"""Former options, and the settings to write in their place; the last takes the option's value."""
OWN = {"--plugin": ("methods",), "--answer": ("ask",)}
"""Commands that have an option of one of these names."""
OPTIONS = {
    "--evidence": ("--top",),
    "--passages": ("--top",),
    "--prune-all": ("--prune", "--yes"),
    "--lens": ("--len",),
}
"""Former options with another name today."""
REMOVED = {"--reader-model": "--reader URL#MODEL", "--reader-timeout": "$ESA_READER_TIMEOUT"}


def present_arguments(arguments: list[str]) -> list[str]:
    """The arguments by today's names; standard error says which were replaced. `ask` is put before
    a document. Raises UsageError: an option is gone."""
    if not arguments or arguments[0].startswith("-"):
        return arguments
    name, *rest = arguments
    if name == "count":
        name, rest = "collect", ["--count", *(word for word in rest if word != "--list")]
        _warn("count", "collect --count")
    elif name == "sync":
        words = [] if "--read" in rest else ["--words"]
        name, rest = "ingest", [*words, *(word for word in rest if word != "--read")]
        _warn("sync", " ".join(["ingest", *words]))
    elif name == "library" and rest and rest[0] in ("push", "pull", "export", "import"):
        rest = _copy(*rest)
    elif name not in COMMANDS and (os.path.lexists(name) or (len(rest) == 1 and "." in name)):
        name, rest = "ask", arguments
    end = rest.index("--") if "--" in rest else len(rest)
    words = list[str]()
    for word in rest[:end]:
        if len(words) > 1 and words[-2] == "--set" and words[-1].endswith("="):
            words[-1] += word
        elif word == "--stdin" and name == "ask":
            _warn("--stdin", "- as the question")
        else:
            words += _present(name, word)
    questions = ["-"] if name == "ask" and "--stdin" in rest[:end] else []
    return [name, *words, *questions, *rest[end:]]


def _present(command: str, word: str) -> list[str]:
    """The words in place of one, which may be `--option=value`."""
    option, equals, value = word.partition("=")
    if option in REMOVED:
        raise UsageError(f"there is no option {option}", f"use {REMOVED[option]}")
    if command in OWN.get(option, ()):
        return [word]
    if option in SHORT:
        return ["--set", SHORT[option] + value]
    if option in SETTINGS:
        words = [part for setting in SETTINGS[option] for part in ("--set", setting)]
        words[-1] += value
    elif option in OPTIONS:
        words = [*OPTIONS[option], *([value] if equals else [])]
    else:
        return [word]
    _warn(option, " ".join(words))
    return words


def _copy(former: str, *rest: str) -> list[str]:
    """`push PLACE ID...`, `pull PLACE ID...`, `export --out FILE ID...` and `import FILE`."""
    place = next((word for word in rest if not word.startswith("-")), "")
    others = [word for word in rest if word not in (place, "--out", "-o")]
    places = ["library", place] if former in ("push", "export") else [place, "library"]
    _warn(f"library {former}", f"library copy {' '.join(places)}")
    return ["copy", *places, *others]


def _warn(former: str, present: str) -> None:
    print(f"esa: {former} is now {present}", file=sys.stderr)
