"""What a stored reading depends on, as one text: two readings of a document that have it in common
are the same reading, and either serves any question that the other would.

Only what shapes the rows while they are read counts: how questions are asked later does not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .calibrate.fingerprint import fingerprint
from .library.layout import Layout
from .method import Method
from .preset import Preset

FORMAT = 1
"""Raised when rows read by an older version would differ."""


def identity(model: Any, preset: Preset, method: Method, layout: Layout) -> str:
    """The identity of a reading by `method`, built from `preset`, stored as `layout` says."""
    window = preset.window.model_dump(exclude={"ending", "selected"})
    facts: dict[str, Any] = {
        "format": FORMAT,
        "model": json.loads(fingerprint(model).as_text()),
        "rows": {"dtype": layout.dtype, "kind": layout.kind},
        "prompt": preset.prompt.model_dump(exclude={"after"}),
        "window": window,
        "position": preset.position,
        "reading": preset.reading,
    }
    if method.score.features:
        aim = {
            "rotate": getattr(method.score, "rotate", False),
            "distance": method.position.distance,
        }
        facts["compressor"] = {**_contents(preset.compressor), **aim}
    if preset.reading == "select":
        facts |= {"selector": preset.selector, "score": preset.score}
        facts["window"] = {**window, "selected": preset.window.selected}
    return json.dumps(facts, sort_keys=True)


def _contents(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, a file by what is in it."""
    out = dict(settings)
    if "file" in out:
        path = Path(str(out["file"])).expanduser()
        out["file"] = hashlib.sha256(path.read_bytes()).hexdigest()
    return out


def storable(method: Method) -> bool:
    """Whether a reading can be stored: not where a selector keeps side data of what it saw."""
    return not hasattr(method.selector, "observe")
