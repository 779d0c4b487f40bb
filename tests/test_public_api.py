"""What `import esa_cli` offers, and what it costs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import esa_cli

ROOT = Path(__file__).parent.parent


def test_what_is_offered_is_there_and_nothing_else_is() -> None:
    for name in esa_cli.__all__:
        assert getattr(esa_cli, name)
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
