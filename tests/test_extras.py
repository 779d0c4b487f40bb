"""The extras of pyproject.toml: each is documented, and where one is missing esa names it.

`make extras-check` resolves them with pip.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from esa_cli.apps.cli.commands.ingest_command import check_ingest_engine_installed
from esa_cli.apps.cli.commands.serve_command import ServeCommandOptions, check_mcp_sdk_version
from esa_cli.apps.cli.commands.serve_command import check_serve_options as check_serve
from esa_cli.documents.readers.text_builder import import_package
from esa_cli.errors import EsaError
from esa_cli.evaluation.bench.benchmarks import load_gpt4_tokenizer
from esa_cli.evaluation.metrics import import_benchmark_library
from esa_cli.models.loading.quantization import check_quantization_available
from esa_cli.qa.finding.late_interaction_finder import check_package_installed
from esa_cli.qa.reading.reader_choice import ReaderChoice

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
USES: list[tuple[str, str, Callable[[], object]]] = [
    ("bitsandbytes", "bitsandbytes", lambda: check_quantization_available("nf4", "cpu")),
    ("torchao", "torchao", lambda: check_quantization_available("int8", "cpu")),
    ("bench", "rouge", lambda: import_benchmark_library("rouge")),
    ("bench", "tiktoken", load_gpt4_tokenizer),
    ("mcp", "mcp", check_mcp_sdk_version),
    ("finders", "sentence_transformers", check_package_installed),
    ("office", "pptx", lambda: import_package("pptx", "python-pptx", "x", extra="office")),
    ("ocr", "rapidocr", lambda: import_package("rapidocr", "rapidocr", "x", extra="ocr")),
    ("ray", "ray", lambda: check_ingest_engine_installed("ray")),
    ("reader", "requests", lambda: ReaderChoice.parse("http://127.0.0.1:9")),
    ("serve", "starlette", lambda: check_serve(ServeCommandOptions())),
    ("serve", "uvicorn", lambda: check_serve(ServeCommandOptions())),
]
"""Extra, a module of it, and what needs that."""


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


def test_every_extra_is_documented_and_only_these() -> None:
    text = (ROOT / "docs/extras.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert set(rows) == set(EXTRAS) - {"dev"}
    for page in [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("esa_cli/**/*.py")]:
        named = re.findall(r"esa-cli\[([\w,]+)\]", page.read_text("utf-8"))
        assert {one for names in named for one in names.split(",")} <= set(EXTRAS), page
