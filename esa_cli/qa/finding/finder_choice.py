"""Opens a preset's finder, which is trained here, of the hub, or on a server, and its reranker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import safe_open

from esa_cli.errors import ModelError, PresetError
from esa_cli.models.files.checkpoint_files import convert_read_errors
from esa_cli.models.files.model_reference import ModelRef, fetch_hub_snapshot, parse_reference
from esa_cli.qa.finding.embedding_finder import open_embedding_finder
from esa_cli.qa.finding.finder import HINT, Finder, FinderSizes, TokenEncoder
from esa_cli.qa.finding.late_interaction_finder import (
    LateInteractionFinder,
    check_package_installed,
    read_late_interaction_sizes,
)  # fmt: skip
from esa_cli.qa.finding.passage_finder import Ranking
from esa_cli.qa.presets.preset import AnswerSettings, Preset
from esa_cli.qa.presets.preset_files import MAPS, find_folder_with_file, locate_finder
from esa_cli.system.progress import StageProgress, ignore_stage_progress


def locate_and_fetch_finder(
    settings: AnswerSettings, progress: StageProgress = ignore_stage_progress
) -> Path | str | None:
    """Returns the folder or address of a preset's finder, which is fetched from the hub, or None if
    there is no finder. Raises PresetError, ModelError, ResourceError, UsageError."""
    if settings.source != "text" or settings.finder is None:
        return None
    place = locate_finder(settings.finder)
    if not isinstance(place, ModelRef):
        return place
    check_package_installed()
    return fetch_hub_snapshot(place, progress)


def load_finder(settings: AnswerSettings, model: Any, tokenizer: Any) -> Finder | None:
    """Loads a preset's finder; raises as `locate_and_fetch_finder`."""
    place = locate_and_fetch_finder(settings)
    if isinstance(place, str):
        return open_embedding_finder(place)
    if place is None:
        return None
    if not (place / MAPS).is_file():
        return LateInteractionFinder(place, model.device)
    return TokenEncoder.load(place, model, tokenizer)


def load_ranking(settings: AnswerSettings) -> Ranking | None:
    """Loads the ranking of a preset's finder; None: the default. Raises ModelError, PresetError."""
    if settings.source != "text" or settings.finder is None:
        return None
    place = locate_finder(settings.finder)
    return Ranking.load(place) if isinstance(place, Path) else None


def read_finder_sizes(
    preset: Preset, progress: StageProgress = ignore_stage_progress
) -> FinderSizes | None:
    """Reads the sizes of a preset's finder; raises as `locate_and_fetch_finder`."""
    place = locate_and_fetch_finder(preset.answer, progress)
    if place is None:
        return None
    if isinstance(place, str):
        return open_embedding_finder(place).sizes
    if not (place / MAPS).is_file():
        return read_late_interaction_sizes(place)
    with convert_read_errors(f"the finder {place}", HINT), safe_open(place / MAPS, "pt") as file:
        facts = json.loads(file.metadata()["finder"])
        return FinderSizes(int(facts["layers"]), int(file.get_slice("key_map").get_shape()[1]))


def locate_and_fetch_reranker(name: str, progress: StageProgress = ignore_stage_progress) -> Path:
    """Returns the folder of a reranker, which is fetched from the hub if `name` is no folder.
    Raises PresetError: there is none. ModelError, ResourceError: see `fetch_hub_snapshot`."""
    if (folder := find_folder_with_file(name, "reranker", "config.json")) is not None:
        return folder
    try:
        ref = parse_reference(name)
    except ModelError:
        ref = None
    if ref is None or ref.kind != "hub" or "/" not in ref.repo:
        wrong = f"answer.reranker must be a folder with config.json or a hub id, got {name!r}"
        raise PresetError(wrong, "check the name, or leave answer.reranker out")
    return fetch_hub_snapshot(ref, progress)
