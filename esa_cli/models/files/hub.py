"""Models on the Hugging Face hub, through huggingface_hub and its own cache.

Only safetensors weights, JSON, tokenizer and template files at the top of a repository are
fetched; never code, never pickled weights. Tokens, mirrors (HF_ENDPOINT) and the offline switch
(HF_HUB_OFFLINE) are those of huggingface_hub.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from esa_cli.errors import ModelError, ResourceError, first_line
from esa_cli.models.files.checkpoint_files import check_tokenizer, weight_files
from esa_cli.models.files.model_reference import ModelRef
from esa_cli.system.files import lacks_room
from esa_cli.system.progress import StageProgress, silent

_SMALL_FILES = ["*.json", "*.model", "*.tiktoken", "*.txt", "*.jinja"]
_FILES = ["*.safetensors", *_SMALL_FILES]
_NOT = ["*/*", "consolidated*"]
_TIMEOUT_S = 10


def local_snapshot(ref: ModelRef) -> Path | None:
    """The snapshot of a hub model that is already on this machine, with its weights, or None."""
    return _on_disk(ref, _FILES, weight_files)


def small_files(ref: ModelRef) -> Path:
    """A snapshot folder with all files of a model but its weights, fetched without progress: any of
    them may be a part of its tokenizer. Raises ModelError, ResourceError: as `fetch`."""
    return _on_disk(ref, _SMALL_FILES, check_tokenizer) or _download(ref, _SMALL_FILES, silent)


def fetch(ref: ModelRef, progress: StageProgress | None = None) -> Path:
    """The local snapshot folder of a hub model, downloaded, with the stage "download" in bytes,
    unless it is there.

    Raises:
        ModelError: no such model, no access or no network. ResourceError: the disk is full.
    """
    if folder := local_snapshot(ref):
        return folder
    _download(ref, _FILES, progress or silent)
    if folder := local_snapshot(ref):
        return folder
    raise ModelError(
        f"{ref.text} has no safetensors weights with a config.json",
        "choose a repository in the transformers format, or download a .gguf file and name that",
    )


def _snapshot(ref: ModelRef, files: list[str], **options: Any) -> Path:
    from huggingface_hub import snapshot_download

    folder = snapshot_download(
        ref.repo, revision=ref.revision, allow_patterns=files, ignore_patterns=_NOT, **options
    )
    return Path(folder)


def _on_disk(ref: ModelRef, files: list[str], check: Callable[[Path], object]) -> Path | None:
    """The snapshot on this machine, if it has a config.json and `check` raises no ModelError."""
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = _snapshot(ref, files, local_files_only=True)
        # Another program may have fetched only some of the files, or have been interrupted.
        check(folder)
    except (LocalEntryNotFoundError, HFValidationError, ModelError):
        return None
    return folder if (folder / "config.json").exists() else None


def _download(ref: ModelRef, files: list[str], report: StageProgress) -> Path:
    from huggingface_hub import HfApi

    report("download", 0, None)
    try:
        # snapshot_download begins with this request too, but without a time limit.
        HfApi().model_info(ref.repo, revision=ref.revision, timeout=_TIMEOUT_S)
        return _snapshot(ref, files, etag_timeout=_TIMEOUT_S, tqdm_class=_silent_bar(report))
    except BrokenPipeError:  # the reader of the progress is gone
        raise
    except Exception as error:
        if lacks_room(error):
            raise ResourceError(
                f"the disk is full: no room for {ref.repo}",
                "free some space, or point the environment variable HF_HOME to another disk",
            ) from error
        raise ModelError(
            f"{ref.repo} cannot be fetched from the hub: {first_line(error.__cause__ or error)}",
            "check the spelling, the network, proxy and HF_ENDPOINT; for a private or gated model "
            "sign in with `hf auth login`; or copy the model here and give its folder",
        ) from error


def _silent_bar(progress: StageProgress) -> Any:
    """A tqdm class that shows nothing and reports the bytes written to disk."""
    tqdm: Any = importlib.import_module("tqdm.std").tqdm

    class SilentBar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            self.reports = str(options.get("desc", "")).startswith("Reconstruct")
            super().__init__(*args, **{**options, "file": io.StringIO(), "disable": False})

        def update(self, n: float | None = 1) -> Any:
            shown = super().update(n)
            if self.reports:
                progress("download", int(self.n), int(self.total) if self.total else None)
            return shown

    return SilentBar


def _cached_models() -> tuple[Any, dict[str, Any]]:
    """huggingface_hub's cache, and the models in it by their ids."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        cache = scan_cache_dir()
    except (CacheNotFound, OSError):
        return None, {}
    return cache, {repo.repo_id: repo for repo in cache.repos if repo.repo_type == "model"}


def cached_repos() -> list[tuple[str, Path, int]]:
    """The models in huggingface_hub's cache: id, folder and bytes on disk."""
    repos = _cached_models()[1].values()
    return sorted((repo.repo_id, Path(repo.repo_path), repo.size_on_disk) for repo in repos)


def delete_repo(ref: ModelRef, confirm: Callable[[], object] = lambda: None) -> int:
    """Deletes every revision of a hub model from huggingface_hub's cache, after `confirm`; returns
    bytes freed. Raises ModelError: the model is not there."""
    cache, repos = _cached_models()
    if ref.repo not in repos:
        raise ModelError(f"{ref.repo} is not in the hub's cache", "see `esa models list`")
    confirm()
    strategy = cache.delete_revisions(*(r.commit_hash for r in repos[ref.repo].revisions))
    strategy.execute()
    return int(strategy.expected_freed_size)
