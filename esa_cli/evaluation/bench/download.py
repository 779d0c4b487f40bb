"""Downloads a benchmark's official files from the Hugging Face hub.

huggingface_hub handles tokens, mirrors (HF_ENDPOINT) and the offline switch (HF_HUB_OFFLINE). The
authors of Counting-Stars and RULER have no files on the hub.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from esa_cli.errors import DocumentError, UsageError
from esa_cli.models.files.hub import silent_bar

_TIMEOUT_S = 10


@dataclass(frozen=True)
class Dataset:
    """A repository of the hub, with the licence that its authors state."""

    repo: str
    licence: str
    patterns: Sequence[str]


DATASETS = {
    "longbench": Dataset(
        "THUDM/LongBench", "MIT; the texts keep the licences of their sources", ["data.zip"]
    ),
    "infinitebench": Dataset(
        "xinrongzhang2022/InfiniteBench",
        "MIT; the texts keep the licences of their sources",
        [
            "passkey.jsonl", "number_string.jsonl", "kv_retrieval.jsonl", "math_find.jsonl",
            "longbook_choice_eng.jsonl", "code_debug.jsonl",
        ],
    ),
    "needlebench": Dataset(
        "opencompass/NeedleBench",
        "see the page of the dataset",
        ["PaulGrahamEssays.jsonl", "needles.jsonl", "multi_needle_reasoning_en.json"],
    ),
}  # fmt: skip


def dataset(name: str, source: str) -> Dataset:
    """The benchmark's repository; raises UsageError when it has none."""
    if name not in DATASETS:
        raise UsageError(f"{name} cannot be downloaded", f"official files: {source}")
    return DATASETS[name]


def download(chosen: Dataset, folder: Path, *, bars: bool = True) -> None:
    """Puts the files into the folder; `bars` shows progress. Raises DocumentError: they cannot be
    fetched or unpacked."""
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(
            chosen.repo,
            repo_type="dataset",
            local_dir=folder,
            allow_patterns=list(chosen.patterns),
            etag_timeout=_TIMEOUT_S,
            tqdm_class=None if bars else silent_bar(),
        )
        for archive in folder.glob("data.zip"):
            unpack(archive, folder)
    except Exception as error:
        reason = (str(error.__cause__ or error) or type(error).__name__).splitlines()[0]
        raise DocumentError(
            f"cannot fetch {chosen.repo} from the hub: {reason}",
            "check the network, proxy and HF_ENDPOINT; or copy the files into --data yourself",
        ) from error


def unpack(archive: Path, folder: Path) -> None:
    """Extracts an archive's .jsonl files into the folder itself, without the archive's folders."""
    with zipfile.ZipFile(archive) as packed:
        for member in packed.namelist():
            name = PurePosixPath(member).name
            if name.endswith(".jsonl"):
                with packed.open(member) as source, (folder / name).open("wb") as target:
                    shutil.copyfileobj(source, target)
