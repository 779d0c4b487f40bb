"""Nine rooms, imports in one direction, no circle of files or folders.

Read from the syntax trees: imports inside functions and those for type checkers alone count, too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "esa_cli"

ROOMS: dict[str, set[str]] = {
    "system": set(),
    "attention": {"system"},
    "storage": {"attention", "system"},
    "methods": {"storage", "attention", "system"},
    "documents": {"system"},
    "models": {"storage", "attention", "system"},
    "qa": {"models", "documents", "methods", "storage", "attention", "system"},
    "evaluation": {"qa", "models", "documents", "methods", "storage", "attention", "system"},
    "apps": {
        *("evaluation", "qa", "models", "documents", "methods", "storage", "attention", "system")
    },
}
"""Room -> the rooms it may import. `errors` and `version` may be imported by everyone."""

EVERYONES = {"errors", "version"}


@cache
def modules() -> dict[str, Path]:
    """Dotted name -> file, packages by their own name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Every (module, name) that is imported; name is empty for `import module`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from ((node.module or "", alias.name) for alias in node.names)


@cache
def trees() -> dict[str, ast.Module]:
    return {name: ast.parse(path.read_text("utf-8")) for name, path in modules().items()}


@cache
def own_imports(module: str) -> frozenset[str]:
    """The package's own modules that a module imports."""
    found = set()
    for base, name in imported(trees()[module]):
        if base.split(".")[0] == "esa_cli":
            found.add(f"{base}.{name}" if f"{base}.{name}" in modules() else base)
    return frozenset(found - {module})


def foreign_imports(module: str) -> set[str]:
    return {base.split(".")[0] for base, _ in imported(trees()[module])} - {"esa_cli"}


def room_of(module: str) -> str:
    """The room of a module; for files at the top, the file's own name."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def in_room(*rooms: str) -> list[str]:
    return [module for module in modules() if room_of(module) in rooms]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_the_rooms_below_it(room: str) -> None:
    allowed = ROOMS[room] | EVERYONES | {room}
    wrong = [
        f"{module} imports {other}"
        for module in in_room(room)
        for other in sorted(own_imports(module))
        if room_of(other) not in allowed
    ]
    assert not wrong


def test_no_circle_of_files() -> None:
    """A CycleError names one."""
    TopologicalSorter({module: own_imports(module) for module in modules()}).prepare()


def test_no_circle_of_folders() -> None:
    """Of the files at the top, which are the package's face, every folder may import the errors."""
    folders: dict[str, set[str]] = {}
    for module, path in modules().items():
        inside = path.parent
        if inside != PACKAGE:
            others = {modules()[other].parent for other in own_imports(module)}
            folders.setdefault(str(inside), set()).update(map(str, others - {inside, PACKAGE}))
    TopologicalSorter(folders).prepare()


@pytest.mark.parametrize(
    ("library", "rooms"),
    [
        ("transformers", {"models"}),
        ("typer", {"apps", "__main__"}),
        ("click", {"apps", "__main__"}),
        ("rich", {"apps", "evaluation", "__main__"}),
    ],
)
def test_libraries_stay_in_their_rooms(library: str, rooms: set[str]) -> None:
    importing = {module for module in modules() if library in foreign_imports(module)}
    assert {room_of(module) for module in importing} <= rooms
