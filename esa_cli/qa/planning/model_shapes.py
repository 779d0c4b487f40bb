"""Sizes of known models, as their config.json has them: a table for plans without the model."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from esa_cli.models import parse_reference, path_of
from esa_cli.models.loading.text_part import language_settings
from esa_cli.system.strict_yaml import load_yaml

TABLE = Path(__file__).with_name("model_shapes.yaml")


@cache
def known_shapes() -> dict[str, dict[str, Any]]:
    """Name of a model's reference -> entries of its config.json, from the shipped table."""
    data = load_yaml(TABLE.read_text("utf-8"))
    assert isinstance(data, dict)
    return data


def config_without_model(model: str) -> dict[str, Any] | None:
    """The sizes of a model that nothing is fetched of: its config.json where it is on this machine,
    else the table's; None: it is in neither.

    Raises:
        ModelError: no valid reference, or a config.json that cannot be read.
    """
    reference = parse_reference(model)
    folder = path_of(reference)
    return known_shapes().get(reference.name) if folder is None else language_settings(folder)
