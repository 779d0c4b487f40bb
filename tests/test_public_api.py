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


def test_exactly_these_names_are_public() -> None:
    assert esa_cli.__all__ == PUBLIC
    assert set(PUBLIC) <= set(dir(esa_cli))
    for name in {*PUBLIC} - {"__version__"}:
        assert getattr(esa_cli, name).__name__ == {"load_preset": "load"}.get(name, name)
    with pytest.raises(AttributeError, match="no attribute 'Sesion'"):
        _ = esa_cli.Sesion


@pytest.mark.parametrize(
    "code",
    [
        "esa_cli.load_preset()\nesa_cli.Library, esa_cli.Turn, esa_cli.Passage\n"
        f"esa_cli.read_document({str(ROOT / 'README.md')!r})\n",
        "from esa_cli import Esa\nassert 'esa_cli.methods' not in sys.modules\n",
    ],
)
def test_importing_loads_nothing_heavy(code: str) -> None:
    code = (
        f"import sys, esa_cli\n{code}"
        "heavy = {'torch', 'transformers', 'tokenizers', 'numpy', 'rich', 'typer'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
