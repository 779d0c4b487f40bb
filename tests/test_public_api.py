"""What `import esa_cli` offers, and what it costs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import esa_cli

ROOT = Path(__file__).parent.parent
PUBLIC = [
    "Book", "CollectedPlace", "Collection", "Document", "Esa", "Library",
    "Method", "Passage", "Reply", "Session", "Turn", "Window", "__version__", "attach",
    "load_preset", "read_document",
]  # fmt: skip


def run(code: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )


def test_exactly_these_names_are_public() -> None:
    assert esa_cli.__all__ == PUBLIC
    assert set(PUBLIC) <= set(dir(esa_cli))


def test_every_name_has_a_place_and_no_other_has() -> None:
    assert sorted([*esa_cli._PLACES, "__version__"]) == PUBLIC


@pytest.mark.parametrize("name", sorted({*PUBLIC} - {"__version__"}))
def test_every_public_name_is_what_it_says(name: str) -> None:
    assert getattr(esa_cli, name).__name__ == {"load_preset": "load"}.get(name, name)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Sesion'"):
        _ = esa_cli.Sesion
    with pytest.raises(ImportError, match="Sesion"):
        exec("from esa_cli import Sesion")


def test_importing_loads_nothing_heavy() -> None:
    done = run(
        "import sys, esa_cli\n"
        "esa_cli.load_preset()\n"
        "esa_cli.Library, esa_cli.Turn, esa_cli.Passage\n"
        f"esa_cli.read_document({str(ROOT / 'README.md')!r})\n"
        "heavy = {'torch', 'transformers', 'tokenizers', 'numpy', 'rich', 'typer'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)\n"
    )
    assert done.returncode == 0, done.stderr


def test_the_class_is_imported_without_torch_and_methods() -> None:
    done = run(
        "import sys\n"
        "from esa_cli import Esa\n"
        "heavy = [name for name in sys.modules if name in ('torch', 'numpy', 'transformers')]\n"
        "heavy += [name for name in sys.modules if name.startswith('esa_cli.methods')]\n"
        "sys.exit(' '.join(heavy) or 0)\n"
    )
    assert done.returncode == 0, done.stderr


def test_submodules_can_still_be_imported_from_the_package() -> None:
    done = run("from esa_cli import errors, models, version; print(models.__name__)")
    assert done.stdout == "esa_cli.models\n", done.stderr
