"""Chooses and opens the finder that a preset names: shipped, of the hub, or on a server."""

from __future__ import annotations

import json
from typing import Any

from safetensors import safe_open

from esa_cli.models.files.checkpoint_files import convert_read_errors
from esa_cli.qa.finding.finder import HINT, Finder, FinderSizes, TokenEncoder
from esa_cli.qa.finding.late_interaction_finder import (
    LateInteractionFinder,
    fetch_finder_folder,
    read_late_interaction_sizes,
)
from esa_cli.qa.presets.finder_names import MAPS, locate_finder
from esa_cli.qa.presets.preset import AnswerSettings, Preset
from esa_cli.system.progress import StageProgress, ignore_stage_progress


def load_finder(settings: AnswerSettings, model: Any, tokenizer: Any) -> Finder | None:
    """Loads the finder that the settings of a preset name, or returns None if none is named.
    Raises PresetError, ModelError, ResourceError, UsageError."""
    if settings.source != "text" or settings.finder is None:
        return None
    place = locate_finder(settings.finder)
    if place.kind == "late interaction":
        return LateInteractionFinder.load(fetch_finder_folder(place), model.device)
    assert place.folder is not None
    return TokenEncoder.load(place.folder, model, tokenizer, fixed=True)


def read_finder_sizes(
    preset: Preset, progress: StageProgress = ignore_stage_progress
) -> FinderSizes | None:
    """Reads the sizes of a preset's finder, if there is one; a finder of the hub is fetched.
    Raises PresetError, ModelError, ResourceError, UsageError."""
    settings = preset.answer
    if settings.needs_kv_cache or settings.finder is None:
        return None
    place = locate_finder(settings.finder)
    if place.kind == "late interaction":
        return read_late_interaction_sizes(fetch_finder_folder(place, progress))
    assert place.folder is not None
    path = place.folder / MAPS
    with convert_read_errors(f"the finder {path.parent}", HINT), safe_open(path, "pt") as file:
        facts = json.loads(file.metadata()["finder"])
        return FinderSizes(int(facts["layers"]), int(file.get_slice("key_map").get_shape()[1]))
