"""Files, tests and names that the documents mention exist."""

from __future__ import annotations

import ast
import re
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "benchmarks/README.md"]
ROOTS = [ROOT, ROOT / "esa_cli", *(path for path in ROOT.glob("esa_cli/*") if path.is_dir())]
OTHERS = {"my_selector.py", "locks/", "settings/"}
"""What readers write themselves, and folders of the library and the cache."""


def names(page: Path, pattern: str) -> set[str]:
    return set(re.findall(pattern, page.read_text("utf-8")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_is_there(page: Path) -> None:
    paths = names(page, r"`([a-z0-9_/]+(?:/|\.py))`") - OTHERS
    anywhere = {path.name for path in ROOT.glob("*/**/*.py")}
    lacking = {
        path
        for path in paths
        if not any((root / path).exists() for root in [*ROOTS, page.parent])
        and path not in anywhere
    }
    assert not lacking
    for target in names(page, r"\]\(([^)#:]+)(?:#[^)]*)?\)"):
        assert (page.parent / target).exists(), target


def test_tests_that_pages_name_exist() -> None:
    tests = "\n".join(path.read_text("utf-8") for path in ROOT.glob("tests/**/test_*.py"))
    told = {name for page in PAGES for name in names(page, r"`(test_[a-z0-9_]+)`")}
    assert {name for name in told if f"def {name}(" not in tests} == set()


def test_modules_that_pages_name_exist() -> None:
    for page in PAGES:
        for dotted in names(page, r"`(esa_cli(?:\.\w+)+)"):
            module, _, name = dotted.rpartition(".")
            try:
                import_module(dotted)
            except ModuleNotFoundError:
                assert hasattr(import_module(module), name), dotted


def test_links_to_sections_lead_somewhere() -> None:
    for page in PAGES:
        for target, section in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text("utf-8")):
            text = (page.parent / target if target else page).read_text("utf-8")
            heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
            assert section in anchors, f"{page.name} -> {target}#{section}"


def test_pages_that_the_code_names_exist() -> None:
    for path in [
        *ROOT.glob("esa_cli/**/*.py"),
        *ROOT.glob("presets/*.yaml"),
        *ROOT.glob("*s/*.py"),
    ]:
        for page in names(path, r"\bdocs/[\w-]+\.md"):
            assert (ROOT / page).is_file(), f"{path.name} names {page}"


def test_names_that_benchmarks_import_exist() -> None:
    """Nobody runs all of them: those of a GPU never here."""
    lacking = []
    for path in ROOT.glob("benchmarks/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("esa_cli"):
                module = import_module(str(node.module))
                for name in [one.name for one in node.names]:
                    if not hasattr(module, name) and not find_spec(f"{node.module}.{name}"):
                        lacking.append(f"{path.name}: {name}")
    assert not lacking


@pytest.mark.parametrize("command", [["gpu", "kernels"], ["gpu", "texts"]])
def test_benchmarks_of_a_gpu_say_that_there_is_none(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit, match="device cuda must be a CUDA GPU"):
        import_module(command[0]).main()
