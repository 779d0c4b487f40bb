"""Chooses and opens the finder that a preset names: trained here, of the hub, or on a server."""

from __future__ import annotations

import json
from typing import Any

from safetensors import safe_open

from esa_cli.models.files.checkpoint_files import convert_read_errors
from esa_cli.models.files.model_reference import fetch_hub_snapshot
from esa_cli.qa.finding.embedding_finder import open_embedding_finder
from esa_cli.qa.finding.finder import HINT, Finder, FinderSizes, TokenEncoder
from esa_cli.qa.finding.late_interaction_finder import (
    LateInteractionFinder,
    check_package_installed,
    read_late_interaction_sizes,
)  # fmt: skip
from esa_cli.qa.presets.finder_names import MAPS, FinderPlace, locate_finder
from esa_cli.qa.presets.preset import AnswerSettings, Preset
from esa_cli.system.progress import StageProgress, ignore_stage_progress


def locate_and_fetch_finder(
    settings: AnswerSettings, progress: StageProgress = ignore_stage_progress
) -> FinderPlace | None:
    """Returns where a preset's finder is, fetched from the hub, or None if there is no finder.
    Raises PresetError, ModelError, ResourceError, UsageError."""
    if settings.source != "text" or settings.finder is None:
        return None
    place = locate_finder(settings.finder)
    if place.ref is not None:
        check_package_installed()
        place = FinderPlace(late=fetch_hub_snapshot(place.ref, progress))
    return place


def load_finder(settings: AnswerSettings, model: Any, tokenizer: Any) -> Finder | None:
    """Loads a preset's finder; raises as `locate_and_fetch_finder`."""
    if (place := locate_and_fetch_finder(settings)) is None:
        return None
    if place.server is not None:
        return open_embedding_finder(place.server)
    if place.late is not None:
        return LateInteractionFinder(place.late, model.device)
    assert place.trained is not None
    return TokenEncoder.load(place.trained, model, tokenizer, fixed=True)


def read_finder_sizes(
    preset: Preset, progress: StageProgress = ignore_stage_progress
) -> FinderSizes | None:
    """Reads the sizes of a preset's finder; raises as `locate_and_fetch_finder`."""
    if (place := locate_and_fetch_finder(preset.answer, progress)) is None:
        return None
    if place.server is not None:
        return open_embedding_finder(place.server).sizes
    if place.late is not None:
        return read_late_interaction_sizes(place.late)
    assert place.trained is not None
    path = place.trained / MAPS
    with convert_read_errors(f"the finder {path.parent}", HINT), safe_open(path, "pt") as file:
        facts = json.loads(file.metadata()["finder"])
        return FinderSizes(int(facts["layers"]), int(file.get_slice("key_map").get_shape()[1]))
