"""Measures memory, formats sizes and durations, and finds home folders and loopback addresses.

Memory is limited by $ESA_MEMORY_LIMIT and by a container (cgroup v2); `ulimit` is ignored."""

from __future__ import annotations

import math
import os
import re
import sys
from pathlib import Path

from esa_cli.errors import EsaError, UsageError

LIMIT = "ESA_MEMORY_LIMIT"
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]i?)?b?", re.IGNORECASE)


def parse_size(size_text: str, setting_name: str) -> int:
    """Converts a size such as `8GiB`, `500M` or `123456` to bytes. Raises UsageError: the text is
    not a size; the message calls the setting `setting_name`."""
    # Not by pydantic.ByteSize: it takes `1,5GB` as one byte, and does not know `8Gi`.
    match = _SIZE.fullmatch(size_text.strip())
    number = float(match[1]) * _UNITS[(match[2] or "").lower()] if match else math.inf
    if math.isinf(number):
        wrong = f"{setting_name} must be a size, got {size_text!r}"
        raise UsageError(wrong, "give a number of bytes, or a size such as 8GiB")
    return int(number)


def get_memory_limit() -> int | None:
    """Returns $ESA_MEMORY_LIMIT in bytes, or None if the variable is not set. Raises UsageError."""
    text = os.environ.get(LIMIT, "")
    return parse_size(text, LIMIT) if text.strip() else None


def _read_free_container_memory(cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Returns how many bytes a container with a limit (cgroup v2) may still allocate, or None."""
    try:
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return limit - used + int(stat.get("inactive_file", 0))


def measure_free_memory(device: str = "cpu") -> int:
    """Returns the free bytes of a torch device, at most those that the container may allocate."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.mem_get_info(torch.device(device))[0]
    import psutil

    free, inside = psutil.virtual_memory().available, _read_free_container_memory()
    return free if inside is None else min(free, inside)


def measure_available_memory(device: str = "cpu") -> int:
    """Returns the free bytes of a torch device, at most $ESA_MEMORY_LIMIT. Raises UsageError."""
    limit = get_memory_limit()
    return measure_free_memory(device) if limit is None else min(measure_free_memory(device), limit)


def measure_peak_memory(device: str = "cpu") -> int:
    """Returns this process's peak memory in bytes: of all GPUs if `device` is one, else of RAM."""
    if device.startswith("cuda"):
        import torch

        count = torch.cuda.device_count()
        return sum(torch.cuda.max_memory_allocated(place) for place in range(count))
    try:
        import resource
    except ImportError:  # Windows
        import psutil

        return int(getattr(psutil.Process().memory_info(), "peak_wset", 0))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def is_out_of_memory_error(error: BaseException) -> bool:
    """Returns True if an error, such as a RuntimeError of torch, means that memory is exhausted."""
    words = ("can't allocate memory", "not enough memory")
    named = type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError)
    return named or any(part in str(error) for part in words)


def expand_home_folder(path: str | Path, path_name: str, error_class: type[EsaError]) -> Path:
    """Replaces a leading `~` or `~user` of a path by that user's home folder. Raises an error of
    `error_class` that calls the path `path_name`: the user does not exist."""
    try:
        return Path(path).expanduser()
    except RuntimeError as cause:
        message = f"{path_name} {path}: the home folder {Path(path).parts[0]} does not exist"
        raise error_class(message, "give the full path") from cause


def get_esa_home_folder() -> Path:
    """Returns $ESA_HOME, or by default the platform's cache folder for esa. Raises UsageError:
    $ESA_HOME begins with the home folder of a user who does not exist."""
    import platformdirs

    chosen = os.environ.get("ESA_HOME")
    return expand_home_folder(chosen or platformdirs.user_cache_dir("esa"), "ESA_HOME", UsageError)


def format_size(byte_count: float) -> str:
    """Returns a number of bytes as text, such as `512 bytes` or `1.5 GiB`."""
    units = ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while abs(byte_count) >= 1024 and len(units) > 1:
        byte_count /= 1024
        units.pop(0)
    whole = units[0] == "bytes" or abs(byte_count) >= 100
    return f"{byte_count:.0f} {units[0]}" if whole else f"{byte_count:.1f} {units[0]}"


def format_duration(seconds: float) -> str:
    """Returns a duration as text, such as `0.4 s`, `12 s`, `3 min 20 s` or `2 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def is_loopback_host(host: str) -> bool:
    """Whether a host name or address, without a port, refers to this machine."""
    import ipaddress

    name = host.strip("[]").rstrip(".").lower()
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
