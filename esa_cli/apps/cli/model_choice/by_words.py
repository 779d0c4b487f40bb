"""Answers from passages found by their words, where ESA's methods cannot run in the model."""

from __future__ import annotations

from esa_cli import models
from esa_cli.apps.cli.model_choice.known_model import small_files
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.models.loading import load
from esa_cli.qa.presets.preset import Preset


def answerable(chosen: Preset, reporter: Reporter, *, loads: bool = True) -> Preset:
    """The preset as it is where ESA's methods can run in its model, or where it says itself what
    answers come from; else with answers from passages found by their words.

    Args:
        loads: see `runs_methods`.

    Raises:
        ModelError, ResourceError: the model is missing or cannot be fetched.
    """
    if chosen.answer.says_source or runs_methods(chosen, reporter, loads=loads):
        return chosen
    return from_text(chosen)


def from_text(chosen: Preset) -> Preset:
    """The preset with answers from passages of the text."""
    answer = chosen.answer.model_copy(update={"source": "text"})
    return chosen.model_copy(update={"answer": answer})


def runs_methods(chosen: Preset, reporter: Reporter, *, loads: bool = True) -> bool:
    """Whether ESA's methods can run in the preset's model.

    Args:
        loads: transformers will be imported for the model; see `load.runs_methods`.

    Raises: as `answerable`.
    """
    folder = small_files(models.parse_reference(chosen.model), reporter)
    return load.runs_methods(folder, loads)
