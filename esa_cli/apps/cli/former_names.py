"""Names that commands and options had before; today's replace them for one more version."""

from __future__ import annotations

import os
import sys

from esa_cli.apps.cli.cli_app import COMMANDS
from esa_cli.errors import UsageError

COMMAND_NAMES = {"count": ("collect", "--count", "--list"), "sync": ("ingest", "--words", "--read")}
"""What to write in place of a command: the command, an option, and an option that goes."""
_FROM_ROWS = ("--set", "answer.from=rows", "--set")
OPTION_NAMES: dict[str, tuple[str, ...]] = {
    "--evidence": ("--top",),
    "--passages": ("--top",),
    "--prune-all": ("--prune", "--yes"),
    "--lens": ("--len",),
    "--no-adapter": ("--set", "answer.adapter=null"),
    "--selector": (*_FROM_ROWS, "selector.name="),
    "--score": (*_FROM_ROWS, "score.name="),
    "--position": (*_FROM_ROWS, "position.name="),
}
"""What to write in place of an option; `selector.name=` takes the value of the former option."""
COPIES = ("push", "pull", "export", "import")
"""Former commands of `library`, now `copy`."""
SYNONYMS = {"search": "find", "query": "ask", "summarize": "ask", "summarise": "ask"}
"""Words of other tools, and the command that does it here."""


def present_arguments(arguments: list[str]) -> list[str]:
    """The arguments by today's names; standard error says which were replaced. `ask` is put before
    a document. Raises UsageError: a word of another tool is no command."""
    if not arguments or arguments[0].startswith("-"):
        return arguments
    name, *rest = arguments
    if name in COMMAND_NAMES:
        verb, option, former = COMMAND_NAMES[name]
        more = [] if name == "sync" and former in rest else [option]
        _warn(f"esa {name}", " ".join(["esa", verb, *more]))
        name, rest = verb, [*more, *(word for word in rest if word != former)]
    elif name == "library" and rest and rest[0] in COPIES:
        rest = _copy(rest)
    elif name not in COMMANDS and (os.path.lexists(name) or (len(rest) == 1 and "." in name)):
        name, rest = "ask", arguments
    elif name in SYNONYMS:
        raise UsageError(f"there is no command {name}", f"`esa {SYNONYMS[name]}` does that")
    end = rest.index("--") if "--" in rest else len(rest)
    words = [part for word in rest[:end] for part in _replaced(word)]
    if name == "ask" and "--stdin" in words:
        _warn("--stdin", "- as the question")
        words = [*(word for word in words if word != "--stdin"), "-"]
    joined = list[str]()
    for word in words:
        if joined and joined[-1].endswith(".name="):
            joined[-1] += word
        else:
            joined.append(word)
    return [name, *joined, *rest[end:]]


def _copy(words: list[str]) -> list[str]:
    """`push PLACE ID...`, `pull PLACE ID...`, `export --out FILE ID...` and `import FILE`."""
    former, *rest = words
    place = next((word for word in rest if not word.startswith("-")), "")
    others = [word for word in rest if word not in (place, "--out", "-o")]
    places = ["library", place] if former in ("push", "export") else [place, "library"]
    _warn(f"library {former}", f"library copy {' '.join(places)}")
    return ["copy", *places, *others]


def _replaced(word: str) -> list[str]:
    """The words for one that may be a former option, or `--option=value`."""
    option, equals, value = word.partition("=")
    if option not in OPTION_NAMES:
        return [word]
    present = list(OPTION_NAMES[option])
    _warn(option, " ".join(present))
    return [*present, value] if equals else present


def _warn(former: str, present: str) -> None:
    print(f"esa: {former} is now {present}", file=sys.stderr)
