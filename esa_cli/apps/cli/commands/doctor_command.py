"""`esa doctor`: versions, hardware and models of this machine, and missing parts."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.output.terminal import print_json, print_table
from esa_cli.errors import EsaError
from esa_cli.system.machine import size_text
from esa_cli.version import __version__

T = TypeVar("T")

_PACKAGES = (
    "torch", "transformers", "tokenizers", "safetensors", "torchao",
    "bitsandbytes", "kernels", "compressed-tensors", "gptqmodel", "optimum", "auto-round",
)  # fmt: skip
"""What runs models, kernels of attention, and what packs weights or computes with packed ones."""
BYTES = ("total", "available", "limit", "free", "free_disk")


def doctor(as_json: options.Json = False) -> None:
    """Show versions, hardware, models, and what is missing.

    Kernels and disk, too; and what to do about what is missing.
    """
    facts = report()
    if as_json:
        print_json(facts)
        return
    rows = list[tuple[str, str]]()
    for key, value in facts.items():
        if key == "packages":
            rows += [(name, version or "not installed") for name, version in value.items()]
        elif isinstance(value, dict):
            rows += [(f"{key} {name}", _text(name, part)) for name, part in value.items()]
        elif key == "devices":
            rows += [
                (gpu["device"], f"{gpu['name']}, {_text('free', gpu['free'])}") for gpu in value
            ]
        elif key != "hints":
            rows.append((key.replace("_", " "), _text(key, value)))
    print_table(("", ""), rows)
    for hint in facts["hints"]:
        print(f"hint: {hint}")


def _text(name: str, value: Any) -> str:
    """A fact for people."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if name in BYTES:
        return size_text(value)
    return ", ".join(value) if isinstance(value, list) else str(value)


def report() -> dict[str, Any]:
    """The whole report as one JSON object; sizes in bytes."""
    import psutil
    import torch

    from esa_cli.attention.kernels import available
    from esa_cli.models import DEFAULT_MODEL, list_models, path_of
    from esa_cli.models.files.prepared_models import home
    from esa_cli.models.loading.load import choose_dtype
    from esa_cli.system import machine

    broken: list[str] = []

    def value(part: Callable[[], T], otherwise: T) -> T:
        """The result of `part`; where it fails, `otherwise`, and why goes into `broken`."""
        try:
            return part()
        except EsaError as error:
            broken.append(f"{error.message}; {error.hint}".rstrip("; "))
        except (OSError, RuntimeError) as error:
            broken.append(str(error))
        return otherwise

    gpus: list[dict[str, Any]] = value(_devices, [])
    cache = value(home, Path(os.environ.get("ESA_HOME", ""))).absolute()
    folder = next(place for place in (cache, *cache.parents) if place.is_dir())
    default = value(lambda: path_of(DEFAULT_MODEL), None)
    level = torch.backends.cpu.get_cpu_capability()
    facts: dict[str, Any] = {
        "esa": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": {name: version_of(name) for name in _PACKAGES},
        "processor": {
            "avx2": level in ("AVX2", "AVX512"),
            "avx512": level == "AVX512",
            "cores": psutil.cpu_count(logical=False) or os.cpu_count(),
            "threads": torch.get_num_threads(),
        },
        "memory": {
            "total": psutil.virtual_memory().total,
            "available": value(machine.available_memory, machine.free_memory()),
            "limit": value(machine.memory_limit, None),
        },
        "devices": gpus,
        "kernels": [name for name, usable in available().items() if usable],
        "dtype": str(choose_dtype("auto", gpus[0]["device"] if gpus else "cpu"))[6:],
        "default_model": str(default) if default else None,
        "models": value(lambda: len(list_models()), 0),
        "cache": str(cache),
        "free_disk": value(lambda: shutil.disk_usage(folder).free, 0),
    }
    return {**facts, "hints": [*dict.fromkeys(broken), *_hints(facts)]}


def version_of(package: str) -> str | None:
    """The installed version, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _devices() -> list[dict[str, Any]]:
    """GPUs that torch can use, with their free memory in bytes."""
    import torch

    gpus: list[dict[str, Any]] = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_name(index)
        gpus.append({"device": f"cuda:{index}", "name": name, "free": free, "total": total})
    if torch.backends.mps.is_available():
        gpus.append({"device": "mps", "name": platform.processor(), "free": 0})
    return gpus


def _hints(facts: dict[str, Any]) -> list[str]:
    """Hints about missing parts and scarce resources."""
    no_model, gpus = facts["default_model"] is None, facts["devices"]
    cuda = any(gpu["device"].startswith("cuda") for gpu in gpus)
    little_disk, slow = facts["free_disk"] < 1 << 30, not facts["processor"]["avx2"] and not gpus
    hints = {
        "the default model is not here yet: `esa models pull`, or just ask": no_model,
        "less than 1 GiB of disk is free: point ESA_HOME to another disk": no_model and little_disk,
        "this machine has an NVIDIA driver, but this torch cannot use it": (
            shutil.which("nvidia-smi") and not cuda
        ),
        "torch finds no AVX2 here; reading will be slow": slow and platform.machine() == "x86_64",
        "less than 2 GiB of memory is free: close other programs": (
            facts["memory"]["available"] < 2 << 30
        ),
    }
    return [hint for hint, holds in hints.items() if holds]
