"""One calibration from end to end: opens the work folder, collects, studies, saves the maps."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from esa_cli.attention.learned_maps import Learned, save_learned
from esa_cli.attention.method import Method
from esa_cli.errors import PresetError, UsageError
from esa_cli.evaluation.calibration.activation_files import Shards, open_folder, saving_errors
from esa_cli.evaluation.calibration.activations import collect, whole_key_method
from esa_cli.evaluation.calibration.calibration_study import CalibrationStudy, study
from esa_cli.evaluation.calibration.fit_maps import FitSettings
from esa_cli.models.attachment.attach import attach
from esa_cli.models.attachment.method_layers import layer_windows
from esa_cli.models.attachment.supported_families import keeps_state
from esa_cli.models.fingerprint import KEY, Fingerprint, fingerprint, query_rotation
from esa_cli.models.loading.load import LoadedModel
from esa_cli.qa.answering.prompt import PromptTokens
from esa_cli.qa.presets import method_presets
from esa_cli.qa.presets.preset import Preset
from esa_cli.qa.presets.resolved_preset import resolve
from esa_cli.system.files import replacing
from esa_cli.system.progress import Progress
from esa_cli.system.text import text_digest
from esa_cli.version import __version__

LEAST = 64
"""Fewest tokens that can be divided into fitted and held-out ones."""
DEFAULT_RANK = 48
_MADE_BY = "esa_version"


@dataclass(frozen=True)
class CalibrationJob:
    """A text, a model, and the folder of their queries and keys.

    Args:
        settings: all that these depend on, as JSON.
    """

    loaded: LoadedModel
    preset: Preset
    method: Method
    ids: list[int]
    shards: Shards
    of_model: Fingerprint
    settings: dict[str, Any]

    @property
    def width(self) -> int:
        """F, the dimensions of folded keys."""
        return self.of_model.groups * self.of_model.dim

    def collect(self, progress: Progress | None = None) -> None:
        """Prefills the tokens that are not stored yet."""
        with attach(self.loaded.model, self.method) as attachment:
            collect(attachment, self.ids, self.shards, progress)

    def study(
        self,
        rank: int | None,
        fitting: FitSettings,
        ks: Sequence[int],
        progress: Progress | None = None,
    ) -> CalibrationStudy:
        """Fits and measures.

        Args:
            rank: of every layer, at most F; None takes the preset's.
        """
        rank = rank or int(self.preset.compressor.get("rank", DEFAULT_RANK))
        ranks = [min(rank, self.width)] * self.of_model.layers
        device = self.loaded.device if self.loaded.device.type == "cuda" else "cpu"
        return study(self.shards, ranks, fitting, ks, device, progress)

    def save(self, path: Path, done: CalibrationStudy, fitting: FitSettings) -> None:
        """Writes the best method's maps, with their provenance. Raises ResourceError,
        DocumentError: the file cannot be written."""
        trained = asdict(fitting.training) if done.best == "learned" else {}
        metadata = {
            _MADE_BY: __version__,
            KEY: self.of_model.as_text(),
            **query_rotation(self.method),
            "method": done.best,
            "ranks": json.dumps(done.ranks),
            "training": json.dumps(trained, sort_keys=True),
            "reading": json.dumps(self.settings, sort_keys=True),
        }
        maps, place = done.results[done.best].maps, path.resolve()  # a link stays one
        with saving_errors(path, "--out"):
            if not os.access(place.parent, os.W_OK):
                save_learned(place, maps, metadata)
                return
            with replacing(place) as part:
                save_learned(part, maps, metadata)


def target_preset(name: str, preset: Preset) -> Preset:
    """The preset with the settings of the method that will use the maps. Raises UsageError: there
    is no such method, or it scores with whole keys."""
    made = method_presets.named(name, preset)
    if not resolve(made).method.score.features:
        raise UsageError(
            f"method {name!r} scores with whole keys, and would not use a compressor",
            "leave out --for, which then is `esa`; or give a score that has one a shortlist: "
            f"--for {method_presets.AS_IS} --set score.shortlist=4096",
        )
    return made


def open_job(
    loaded: LoadedModel, preset: Preset, text: str, tokens: int, folder: Path, resume: bool = True
) -> CalibrationJob:
    """Takes the text's first `tokens` tokens, and opens the work folder.

    Raises:
        UsageError: the text is too short, the folder is another run's, or layers of the model
            attend to a window or keep a state.
        ResourceError, DocumentError: the folder cannot be written.
    """
    config = loaded.model.config
    if any(layer_windows(config)) or keeps_state(config):
        raise UsageError(
            "esa calibrate fits maps for models whose layers all attend to all tokens; some of "
            f"this {config.model_type} model's attend to a window, or keep a state",
            "use the closed-form compressor, which is fitted while a text is read: "
            "--set compressor.name=closed-form",
        )
    ids = PromptTokens(loaded.tokenizer, preset.prompt).document(text)[:tokens]
    if len(ids) < LEAST:
        raise UsageError(
            f"a text must have at least {LEAST} tokens to fit on, got {len(ids)}",
            "50,000 are better",
        )
    of_model, chosen = fingerprint(loaded.model), preset.model_dump()
    parts = ("window", "selector", "score", "position", "reading", "prompt", "kernel")
    settings = {
        "model": of_model.as_text(),
        "text": text_digest(text),
        "number of tokens": len(ids),
        "dtype": str(loaded.dtype),
        **{part: chosen[part] for part in parts},
    }
    shards = open_folder(folder, settings, resume, len(ids))
    method = whole_key_method(resolve(preset).method)
    return CalibrationJob(loaded, preset, method, ids, shards, of_model, settings)


def refuse_foreign(path: Path) -> None:
    """Raises UsageError for a file that `CalibrationJob.save` did not write."""
    try:
        ours = _MADE_BY in Learned(str(path)).metadata
    except PresetError:
        ours = False
    if not ours:
        raise UsageError(
            f"--out must be new or a file of `esa calibrate`, got {path}", "name another file"
        )
