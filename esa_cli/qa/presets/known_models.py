"""The table of known models: names that stand for repositories of the Hugging Face hub."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from esa_cli.system.strict_yaml import load_yaml

TABLE = Path(__file__).with_name("models.yaml")


class ModelFacts(BaseModel):
    """What the table says of a model; its comment explains each field."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    model: str
    weights: float
    window: int
    heads: list[list[int]] = []
    way: str = "chat"

    def bytes_in(self, size: int) -> int:
        """Bytes of the weights, with `size` bytes a number."""
        return round(self.weights * 1e9) * size


@cache
def known_models() -> dict[str, ModelFacts]:
    """Name -> model, of the shipped table."""
    data = load_yaml(TABLE.read_text("utf-8"))
    assert isinstance(data, dict)
    return {name: ModelFacts.model_validate(facts) for name, facts in data.items()}


def reference(named: str) -> str:
    """The hub id for a name of the table; any other text as it is."""
    return known_models()[named].model if named in known_models() else named


def facts_of(model: str) -> ModelFacts | None:
    """What the table says of a hub id; None: nothing."""
    return next((one for one in known_models().values() if one.model == model), None)
