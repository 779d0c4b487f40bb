"""A small file with the speed of earlier prefills on this machine, for better estimates.

It holds floating-point operations per second by model, dtype, device and reading mode. Losing
it, or failing to write it, costs nothing but the precision of an estimate.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from esa_cli.models.files.prepared_models import home
from esa_cli.system.files import replacing


def rates_file() -> Path:
    """`rates.json` in esa's cache folder."""
    return home() / "rates.json"


def _read() -> dict[str, float]:
    try:
        data = json.loads(rates_file().read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(data, dict):
        return {}
    return {k: float(v) for k, v in data.items() if isinstance(v, (int, float)) and v > 0}


def recall(key: str) -> float | None:
    """Operations per second measured last for `key`, or None."""
    return _read().get(key)


def remember(key: str, rate: float) -> None:
    """Keeps `rate`, in operations per second; whatever goes wrong is passed over."""
    path = rates_file()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            part.write_text(json.dumps({**_read(), key: rate}, indent=1) + "\n", "utf-8")
