"""Fetches, converts and loads language models, attaches attention methods to models, and generates
text. No other package of esa imports transformers; `import esa_cli.models` imports neither torch
nor transformers before a model is loaded or converted."""

from esa_cli.models.files.model_reference import DEFAULT_MODEL, ModelRef, parse_reference
from esa_cli.models.files.prepared_models import (
    CachedModel,
    delete_cached_model,
    fetch_model_folder,
    find_model_folder,
    list_models,
)
from esa_cli.models.loading.load import LoadedModel, load

__all__ = [
    "DEFAULT_MODEL", "CachedModel", "LoadedModel", "ModelRef", "delete_cached_model",
    "fetch_model_folder", "find_model_folder", "list_models", "load", "parse_reference",
]  # fmt: skip
