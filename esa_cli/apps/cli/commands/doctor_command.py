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
from esa_cli.errors import EsaError

T = TypeVar("T")

_PACKAGES = (
    "torch", "transformers", "tokenizers", "safetensors", "flash-attn-4", "torchao",
    "bitsandbytes", "kernels", "compressed-tensors", "gptqmodel", "optimum", "auto-round",
)  # fmt: skip
"""What runs models, kernels of attention, and what packs weights or computes with packed ones."""


def doctor(as_json: options.Json = False) -> None:
    """Show versions, hardware, models, and what is missing.

    Kernels and disk, too; and what to do about what is missing.
    """
    from esa_cli.apps.cli.output.terminal import print_json, print_table

    facts = report()
    if as_json:
        print_json(facts)
        return
    print_table(("", ""), _rows(facts))
    for hint in facts["hints"]:
        print(f"hint: {hint}")


def _rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    from esa_cli.system.machine import size_text

    cpu, memory = facts["processor"], facts["memory"]
    features = [name for name in ("avx2", "avx512", "bfloat16") if cpu[name]]
    capped = memory["limit"] is not None
    limit = f" (ESA_MEMORY_LIMIT is {size_text(memory['limit'])})" if capped else ""
    packages = [(name, version or "not installed") for name, version in facts["packages"].items()]
    return [
        ("esa", facts["esa"]),
        ("python", f"{facts['python']} on {facts['system']}"),
        *packages,
        ("processor", " ".join((f"cores: {cpu['cores']}, threads: {cpu['threads']},", *features))),
        (
            "memory",
            f"{size_text(memory['available'])} available of {size_text(memory['total'])}{limit}",
        ),
        *(
            (gpu["device"], f"{gpu['name']}, {size_text(gpu.get('free', 0))} free")
            for gpu in facts["devices"]
        ),
        ("kernels", ", ".join(facts["kernels"])),
        ("default dtype", facts["dtype"]),
        ("default model", facts["default_model"] or "not on this machine"),
        ("models", str(facts["models"])),
        ("cache", f"{facts['cache']} ({size_text(facts['free_disk'])} free)"),
    ]


def version_of(package: str) -> str | None:
    """The installed version, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def processor() -> dict[str, Any]:
    """Features and counts of the processor, as torch sees it."""
    import psutil
    import torch

    capabilities: dict[str, Any] = dict(getattr(torch.cpu, "get_capabilities", dict)())
    if not capabilities:
        level = torch.backends.cpu.get_cpu_capability()
        capabilities = {"avx2": level != "DEFAULT", "avx512_f": level == "AVX512"}
    return {
        "avx2": bool(capabilities.get("avx2")),
        "avx512": bool(capabilities.get("avx512_f")),
        "bfloat16": any(capabilities.get(k) for k in ("avx512_bf16", "amx_bf16")),
        "cores": psutil.cpu_count(logical=False) or os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def devices() -> list[dict[str, Any]]:
    """GPUs that torch can use, with their memory in bytes."""
    import torch

    found: list[dict[str, Any]] = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_name(index)
        found.append({"device": f"cuda:{index}", "name": name, "free": free, "total": total})
    if torch.backends.mps.is_available():
        found.append({"device": "mps", "name": platform.processor()})
    return found


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    folder = folder.absolute()
    return next(place for place in (folder, *folder.parents) if place.is_dir())


def _look(broken: list[str], part: Callable[[], T], otherwise: T) -> T:
    """The result of `part`; where it fails, `otherwise`, and the reason goes into `broken`."""
    try:
        return part()
    except EsaError as error:
        broken.append("; ".join(text.rstrip(".") for text in (error.message, error.hint) if text))
    except (OSError, RuntimeError) as error:
        broken.append(str(error))
    return otherwise


def report() -> dict[str, Any]:
    """The whole report as one JSON object; sizes in bytes."""
    import psutil

    from esa_cli.attention.kernels import available
    from esa_cli.models import DEFAULT_MODEL, list_models, path_of
    from esa_cli.models.files.prepared_models import home
    from esa_cli.models.loading.load import choose_dtype
    from esa_cli.system import machine
    from esa_cli.version import __version__

    broken: list[str] = []
    gpus: list[dict[str, Any]] = _look(broken, devices, [])
    cache = _look(broken, home, Path(os.environ.get("ESA_HOME", "")))
    default = _look(broken, lambda: path_of(DEFAULT_MODEL), None)
    facts: dict[str, Any] = {
        "esa": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": {name: version_of(name) for name in _PACKAGES},
        "processor": processor(),
        "memory": {
            "total": psutil.virtual_memory().total,
            "available": _look(broken, machine.available_memory, machine.free_memory()),
            "limit": _look(broken, machine.memory_limit, None),
        },
        "devices": gpus,
        "kernels": [name for name, usable in available().items() if usable],
        "dtype": str(choose_dtype("auto", gpus[0]["device"] if gpus else "cpu"))[6:],
        "default_model": str(default) if default else None,
        "models": _look(broken, lambda: len(list_models()), 0),
        "cache": str(cache),
        "free_disk": _look(broken, lambda: shutil.disk_usage(_existing(cache)).free, 0),
    }
    return {**facts, "hints": [*dict.fromkeys(broken), *hints(facts)]}


def hints(facts: dict[str, Any]) -> list[str]:
    """Hints about missing parts and scarce resources."""
    out = []
    if facts["default_model"] is None:
        out.append("the default model is not here yet: `esa models pull`, or just ask")
        if facts["free_disk"] < 1 << 30:
            out.append("less than 1 GiB of disk is free: point ESA_HOME to another disk")
    cuda = any(gpu["device"].startswith("cuda") for gpu in facts["devices"])
    if shutil.which("nvidia-smi") and not cuda:
        out.append("this machine has an NVIDIA driver, but this torch cannot use it")
    if not facts["processor"]["avx2"] and not facts["devices"]:
        out.append("torch finds no AVX2 here; reading will be slow")
    if facts["memory"]["available"] < 2 << 30:
        out.append("less than 2 GiB of memory is free: close other programs")
    return out
