"""The order of the modules: each imports only what stands before it.

Read from the syntax trees, imports inside functions included. What is imported for type checkers
alone is left out: it does not exist when the program runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "esa_cli"

LAYERS: list[list[str]] = [
    ["__init__"],  # the version; the public names are looked up when they are used
    ["errors"],
    [
        "supported",
        "western",
        "restore",
        "letters",
        "machine",
        "reply",
        "streamer",
        "sentences",
        "told",
        "precise",
        "disk",
    ],
    [
        "kernels",
        "rows",
        "rotary",
        "protocols",
        "registry",
        "document_bytes",
        "models",
        "journal",
        "passages",
        "strict_yaml",
    ],
    ["preset_files", "readers"],
    ["store", "compressors", "positions", "preset", "document", "rates", "template", "doctor"],
    ["joined", "library", "learned"],
    ["step", "prompt", "probes"],
    ["scores", "plugged"],
    ["selectors"],
    ["consensus"],
    ["method", "recipes"],
    [
        "memory",
        "choice",
        "chunks",
        "seen",
        "clipped",
        "held",
        "build",
        "costs",
        "encodings",
        "methods",
        "asked",
    ],
    ["attention", "builtin", "origins"],
    ["cache", "plan", "conformance"],
    ["seam", "witness"],
    ["calibrate", "evidence"],
    ["reading", "identity", "storing"],
    ["session"],
    ["report", "selftest", "bench", "book"],
    ["together"],
    ["api", "batch", "chat", "serve"],
    ["cli"],
    ["__main__"],
]
"""Lowest first. Modules of one line do not import each other; see docs/design.md."""

ALLOWED_UP = {("registry", "builtin")}
"""The registry imports the built-in methods when it is asked to load every plugin: they come in
through the same door as anybody's, and the door stands below them."""

RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}

BELOW_SESSION = [name for name in RANK if RANK[name] < RANK["session"]]
METHOD_PARTS = [
    "kernels", "rows", "rotary", "precise", "protocols", "registry", "store", "compressors",
    "learned", "positions", "step", "scores", "selectors", "consensus", "method", "plugged",
    "builtin", "attention",
]  # fmt: skip


def files_of(module: str) -> list[Path]:
    folder = PACKAGE / module
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [PACKAGE / f"{module}.py"]


def for_type_checkers(node: ast.AST) -> bool:
    test = getattr(node, "test", None)
    return isinstance(node, ast.If) and isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node that exists when the program runs."""
    for child in ast.iter_child_nodes(tree):
        if not for_type_checkers(child):
            yield child
            yield from nodes(child)


def imported(path: Path) -> set[str]:
    """Full names of all modules and names that a file imports."""
    inside = ("esa_cli", *path.relative_to(PACKAGE).parent.parts)
    found: set[str] = set()
    for node in nodes(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(inside[: len(inside) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def own_imports(module: str) -> set[str]:
    """The package's own top-level modules that `module` imports."""
    found: set[str] = set()
    for path in files_of(module):
        for name in imported(path):
            package, _, rest = name.partition(".")
            if package == "esa_cli":
                first = rest.split(".")[0]
                found.add(first if first in RANK else "__init__")
    return found - {module}


def foreign_imports(module: str) -> set[str]:
    return {name.split(".")[0] for path in files_of(module) for name in imported(path)}


def test_every_module_has_its_place() -> None:
    there = {path.stem for path in PACKAGE.glob("*.py")}
    there |= {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert there == set(RANK), "give a new module its place in LAYERS"
    assert sum(len(layer) for layer in LAYERS) == len(RANK)


@pytest.mark.parametrize("module", RANK)
def test_nothing_imports_upward(module: str) -> None:
    wrong = {
        other
        for other in own_imports(module)
        if RANK[other] >= RANK[module] and (module, other) not in ALLOWED_UP
    }
    assert not wrong, f"{module} stands below {', '.join(sorted(wrong))}, or beside it"


@pytest.mark.parametrize(("module", "other"), sorted(ALLOWED_UP))
def test_exceptions_are_still_needed(module: str, other: str) -> None:
    assert other in own_imports(module)


@pytest.mark.parametrize("module", METHOD_PARTS)
def test_the_method_knows_no_host(module: str) -> None:
    assert "transformers" not in foreign_imports(module)
    assert not own_imports(module) & {"models", "document", "preset", "prompt"}


@pytest.mark.parametrize("module", BELOW_SESSION)
def test_only_the_command_line_knows_the_terminal(module: str) -> None:
    assert not foreign_imports(module) & {"typer", "click", "rich"}


@pytest.mark.parametrize("module", ["cache", "seam"])
def test_the_seam_knows_no_text(module: str) -> None:
    assert not own_imports(module) & {"models", "document", "preset", "prompt"}


def test_the_reader_of_imports_reads_them(tmp_path: Path) -> None:
    assert {"method", "kernels", "step"} <= own_imports("attention")
    assert "seam" not in own_imports("cache"), "it is imported for type checkers only"
    assert "session" in own_imports("cli"), "it is imported inside a function"
    assert "models" in own_imports("cli"), "it is imported as `from .. import models`"
    assert "errors" in own_imports("models"), "it is imported by its full name"


def test_the_layers_of_the_design_document_are_these() -> None:
    text = (PACKAGE.parent / "docs" / "design.md").read_text("utf-8")
    block = text.partition("\n    errors\n")[2].partition("\n\n")[0]
    shown = [["errors"], *(line.split() for line in block.splitlines())]
    assert [sorted(line) for line in shown] == [sorted(line) for line in LAYERS[1:]]
