"""Fetches, converts and loads language models, attaches methods to models, and generates text.

No other package of esa imports transformers. Importing `esa_cli.models` imports neither torch nor
transformers; loading or converting a model imports both."""

from esa_cli.models.files.model_reference import DEFAULT_MODEL, ModelRef, parse_reference
from esa_cli.models.files.prepared_models import (
    CachedModel,
    delete_cached_model,
    fetch_model_folder,
    find_model_folder,
    list_models,
)
from esa_cli.models.loading.load import LoadedModel, load
from esa_cli.system.progress import StageProgress

__all__ = [
    "DEFAULT_MODEL", "CachedModel", "LoadedModel", "ModelRef", "StageProgress",
    "delete_cached_model", "fetch_model_folder", "find_model_folder", "list_models", "load",
    "parse_reference",
]  # fmt: skip
