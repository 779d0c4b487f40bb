"""The extras of pyproject.toml: each is documented, and where one is missing esa names it.

`make extras-check` resolves them with pip.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest

from esa_cli.apps.cli.commands.mcp_command import check_sdk
from esa_cli.apps.cli.commands.serve_command import ServeOptions
from esa_cli.apps.cli.commands.serve_command import check as check_serve
from esa_cli.apps.cli.options.engine_options import EngineOptions
from esa_cli.attention.kernels import flash_attn_func
from esa_cli.documents.text_builder import optional_import
from esa_cli.errors import EsaError
from esa_cli.evaluation.bench.needlebench import gpt4
from esa_cli.evaluation.metrics import library
from esa_cli.evaluation.report.figures import new_figure
from esa_cli.models.loading.quantization import check_quantization
from esa_cli.qa.second_model.reader_choice import ReaderChoice
from esa_cli.storage.library.copy_places import RemoteFolder
from esa_cli.system import files

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
USES: list[tuple[str, str, Callable[[], object]]] = [
    ("bitsandbytes", "bitsandbytes", lambda: check_quantization("nf4", "cpu")),
    ("torchao", "torchao", lambda: check_quantization("int8", "cpu")),
    ("bench", "rouge", lambda: library("rouge")),
    ("bench", "tiktoken", gpt4),
    ("mcp", "mcp", check_sdk),
    ("office", "nbformat", lambda: optional_import("nbformat", "nbformat", "x", extra="office")),
    ("office", "odfdo", lambda: optional_import("odfdo", "odfdo", "x", extra="office")),
    ("office", "pptx", lambda: optional_import("pptx", "python-pptx", "x", extra="office")),
    ("plot", "matplotlib", lambda: new_figure(1, 1)),
    ("ray", "ray", lambda: EngineOptions("ray").check()),
    ("reader", "requests", lambda: ReaderChoice("http://127.0.0.1:9")),
    ("serve", "starlette", lambda: check_serve([], ServeOptions())),
    ("serve", "uvicorn", lambda: check_serve([], ServeOptions())),
    ("url", "fsspec", lambda: RemoteFolder("memory://here")),
]
"""Extra, a module of it, and what needs that."""
UNPINNED = {"bitsandbytes", "tiktoken", "torchao"}
"""What `make install` does not install."""


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a module as if it were not installed."""

    def hidden(name: str) -> None:
        for loaded in [one for one in sys.modules if one.partition(".")[0] == name]:
            monkeypatch.delitem(sys.modules, loaded)
        monkeypatch.setitem(sys.modules, name, None)
        known = metadata.version

        def version(distribution: str) -> str:
            if distribution == name:
                raise metadata.PackageNotFoundError(name)
            return known(distribution)

        monkeypatch.setattr(metadata, "version", version)

    return hidden


@pytest.mark.parametrize(("extra", "module", "use"), USES, ids=[f"{a}-{b}" for a, b, _ in USES])
def test_what_is_missing_is_named_with_its_extra(
    extra: str, module: str, use: Callable[[], object], hide: Callable[[str], None]
) -> None:
    hide(module)
    with pytest.raises(EsaError) as caught:
        use()
    assert module.removeprefix("python-") in caught.value.message
    assert f"pip install 'esa-cli[{extra}]'" in caught.value.hint


def test_without_watchfiles_folders_are_looked_at_now_and_then(
    hide: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    hide("watchfiles")
    slept: list[float] = []
    monkeypatch.setattr(files.time, "sleep", slept.append)
    changes: Iterator[None] = files.folder_changes(".")
    assert next(changes) is None
    assert slept == [files.POLL_S]


def test_without_flash_attn_torchs_kernels_are_taken(hide: Callable[[str], None]) -> None:
    hide("flash_attn")
    assert flash_attn_func.__wrapped__() is None


def test_every_extra_is_documented_and_only_these() -> None:
    text = (ROOT / "docs/extras.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert set(rows) == set(EXTRAS) - {"dev"}
    for page in [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("esa_cli/**/*.py")]:
        named = re.findall(r"esa-cli\[([\w,]+)\]", page.read_text("utf-8"))
        assert {one for names in named for one in names.split(",")} <= set(EXTRAS), page


def test_pins_are_within_the_bounds() -> None:
    """What the make targets install is what pyproject.toml allows."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    known = {canonicalize_name(name): version for name, version in pins.items()}
    for extra, requirements in EXTRAS.items():
        for one in map(Requirement, requirements):
            if one.name not in {*UNPINNED, "esa-cli"}:
                assert known[canonicalize_name(one.name)] in one.specifier, (extra, one.name)
    for one in map(Requirement, PROJECT["dependencies"]):
        assert known.get(canonicalize_name(one.name), "") in one.specifier, one.name
