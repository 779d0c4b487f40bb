"""The commands `esa plan`, to estimate memory and time, and `esa doctor`, to inspect a machine."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from esa_cli.apps.cli.inputs import read_documents
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.output.terminal import Reporter, print_json, print_table
from esa_cli.errors import EsaError
from esa_cli.models import DEFAULT_MODEL, find_model_folder, list_models, parse_reference
from esa_cli.storage.library import Library
from esa_cli.system.local_servers import SERVERS, find_running_servers
from esa_cli.system.machine import format_duration, format_size
from esa_cli.version import __version__

_PACKAGES = (
    "torch", "transformers", "tokenizers", "safetensors", "flash-attn-4", "torchao",
    "bitsandbytes", "kernels", "compressed-tensors", "gptqmodel", "optimum", "auto-round",
)  # fmt: skip
"""Packages that run models, attention kernels or quantised weights."""
PARTS = (
    "weights", "keys_values", "reduced_keys", "working", "available", "host_keys_values",
    "host_available",
)  # fmt: skip
_SIZES = ("total", "available", "limit", "free_disk")


@options.make_typer_command
def plan(
    documents: options.Documents,
    method: options.Method = None,
    *,
    model: options.ModelOptions,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Show the tokens, memory and time that documents will take.

    `esa plan` loads no model, and also says whether the documents fit into memory."""
    from esa_cli.qa.finding.words import WINDOW_WORDS, list_sentence_words
    from esa_cli.qa.opening import check_before_loading, choose_answer_source
    from esa_cli.qa.reading.reader_choice import count_reader_weight_bytes, find_preset_reader

    with Reporter(quiet or as_json) as reporter:
        gathered = read_documents(documents, reporter).documents
        chosen, place = model.load_preset(), model.choose_device_and_dtype()
        if method is None:
            chosen = choose_answer_source(chosen, reporter, import_transformers=False)
        ready = check_before_loading(chosen, place, reporter, method=method, documents=gathered)
        chosen = ready.resolved.preset
    if ready.index is not None and ready.index.unit == "window":
        counts = [len(list_sentence_words(one.text).cut_windows(WINDOW_WORDS)) for one in gathered]
    else:
        counts = [ready.model.count_tokens(document.text) for document in gathered]
    planner, index, library = ready.ingest_planner, ready.index, Library()
    reader: int | None = 0
    if (choice := find_preset_reader(ready.resolved.preset)) is not None:
        reader = count_reader_weight_bytes(choice, planner.dtype.itemsize, planner.packing)
        planner.memory -= reader or 0
    planned = planner.plan_ingest(sum(counts))
    facts = {
        "model": chosen.model,
        "preset": chosen.name,
        "cache": planner.cache,
        **{name: getattr(planned, name) for name in ("device", "dtype", "tokens")},
        "fits": planned.fits_memory,
        "most_tokens": planned.max_fitting_tokens,
        "memory_bytes": {"needed": planned.needed_bytes}
        | {part: getattr(planned, part) for part in PARTS},
        "seconds": round(planned.estimated_seconds, 1),
        "seconds_from": planned.speed_source if planned.operations else None,
        "remedies": list(planned.memory_remedies),
        "weights": ready.model.quantization_description or "plain",
        "stored_bytes": index
        and sum(library.estimate_document_size(count, index.layout) for count in counts),
        "finder": chosen.answer.finder,
        "unit": index.unit if index else "token",
        "token_bytes": index and index.layout.row_bytes,
        "reader": chosen.answer.reader,
        "reader_bytes": reader,
    }
    if as_json:
        print_json(facts)
    else:
        print_table(("", ""), _make_plan_table_rows(facts))


def _make_plan_table_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    counts = facts["memory_bytes"]
    sizes = {part: format_size(count) for part, count in counts.items()}
    model = f"{parse_reference(facts['model']).name} ({facts['dtype']} on {facts['device']})"
    reader = format_size(facts["reader_bytes"] or 0) if facts["reader_bytes"] else "not fetched yet"
    packed = "" if facts["weights"] == "plain" else f" ({facts['weights']})"
    how = "as measured here before" if facts["seconds_from"] == "measured" else "a rough guess"
    reading = f"{format_duration(facts['seconds'])} ({how})"
    fits = f"yes, up to {facts['most_tokens']:,} tokens" if facts["fits"] else "no"
    host = sizes["host_keys_values"]
    stored = f"{format_size(facts['stored_bytes'] or 0)} ({facts['token_bytes']} bytes a "
    stored += f"{facts['unit']})"
    rows = [
        ("model", model, True),
        ("words the answers", f"{facts['reader']} ({reader})", facts["reader"]),
        (f"{facts['unit']}s", f"{facts['tokens']:,}", True),
        ("memory needed", sizes["needed"], True),
        ("  weights", sizes["weights"] + packed, True),
        ("  keys and values", sizes["keys_values"], counts["keys_values"]),
        ("  in host memory", host, counts["host_keys_values"]),
        ("  reduced keys", sizes["reduced_keys"], counts["reduced_keys"]),
        ("  working memory", sizes["working"], True),
        ("memory available", sizes["available"], True),
        ("in the library", stored, facts["stored_bytes"]),
        ("reading time", reading if facts["seconds_from"] else "none, as nothing is read", True),
        ("fits", fits, True),
        *((("  to make it fit", remedy, True)) for remedy in facts["remedies"]),
    ]
    return [(label, text) for label, text, is_shown in rows if is_shown]


def doctor(as_json: options.Json = False) -> None:
    """Show versions, hardware, models, and what is missing.

    `esa doctor` also shows kernels and disk space, and says how to get what is missing."""
    facts = inspect_machine()
    if as_json:
        print_json(facts)
        return
    rows = list[tuple[str, str]]()
    for key, value in facts.items():
        if key == "packages":
            rows += [(name, version or "not installed") for name, version in value.items()]
        elif key == "devices":
            rows += [(g["device"], f"{g['name']}, {format_size(g['free'])}") for g in value]
        elif isinstance(value, dict) and key != "servers":
            pairs = value.items()
            rows += [(f"{key} {name}", _format_machine_fact(name, part)) for name, part in pairs]
        elif key not in ("hints", "servers"):
            rows.append((key.replace("_", " "), _format_machine_fact(key, value)))
    for name in SERVERS:
        found = facts["servers"].get(name)
        state = "not here" if found is None else ", ".join(found) or "runs here without a model"
        rows.append((f"--reader {name}", state))
    print_table(("", ""), rows)
    for hint in facts["hints"]:
        print(f"hint: {hint}")


def _format_machine_fact(fact_name: str, value: Any) -> str:
    if value is None:
        return "none"
    if fact_name in _SIZES:
        return format_size(value)
    return ", ".join(value) if isinstance(value, list) else str(value)


def inspect_machine() -> dict[str, Any]:
    """Returns the facts that `esa doctor` shows as one JSON object, with sizes in bytes."""
    import psutil
    import torch

    from esa_cli.attention.kernels import list_kernel_availability
    from esa_cli.models.loading.load import choose_torch_dtype
    from esa_cli.system import machine

    hints: list[str] = []

    def call_or_add_error_to_hints(function: Callable[[], Any], fallback: Any) -> Any:
        """Calls a function; adds the message of an error to the hints, and returns `fallback`."""
        try:
            return function()
        except EsaError as error:
            hints.append(f"{error.message}; {error.hint}".rstrip("; "))
        except (OSError, RuntimeError) as error:
            hints.append(str(error))
        return fallback

    known = {one.name.lower(): one.version for one in importlib.metadata.distributions()}
    gpus: list[dict[str, Any]] = call_or_add_error_to_hints(_list_gpus, [])
    cache = call_or_add_error_to_hints(
        machine.get_esa_home_folder, Path(os.environ.get("ESA_HOME", ""))
    ).absolute()
    folder = next(place for place in (cache, *cache.parents) if place.is_dir())
    default = call_or_add_error_to_hints(lambda: find_model_folder(DEFAULT_MODEL), None)
    facts: dict[str, Any] = {
        "esa": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": {name: known.get(name) for name in _PACKAGES},
        "cpu": {
            "vectors": torch.backends.cpu.get_cpu_capability(),
            "cores": psutil.cpu_count(logical=False) or os.cpu_count(),
            "threads": torch.get_num_threads(),
        },
        "memory": {
            "total": psutil.virtual_memory().total,
            "available": call_or_add_error_to_hints(
                machine.measure_available_memory, machine.measure_free_memory()
            ),
            "limit": call_or_add_error_to_hints(machine.get_memory_limit, None),
        },
        "devices": gpus,
        "kernels": [name for name, usable in list_kernel_availability().items() if usable],
        "dtype": str(choose_torch_dtype("auto", gpus[0]["device"] if gpus else "cpu"))[6:],
        "default_model": str(default) if default else None,
        "models": call_or_add_error_to_hints(lambda: len(list_models()), 0),
        "cache": str(cache),
        "free_disk": call_or_add_error_to_hints(lambda: shutil.disk_usage(folder).free, 0),
        "servers": find_running_servers(),
    }
    name = next((name for name, models in facts["servers"].items() if models), None)
    if name is None:
        hints.append("for better answers: `esa models suggest` names a larger model, for --reader")
    else:
        hints.append(f"for better answers: {SERVERS[name].title} runs here, use --reader {name}")
        if importlib.util.find_spec("requests") is None:
            hints.append("--reader needs the package requests: pip install 'esa-cli[reader]'")
    if default is None:
        hints.append("the default model is not fetched yet: run `esa models pull`, or just ask")
    if facts["free_disk"] < 1 << 30:
        hints.append("less than 1 GiB of disk is free: point ESA_HOME to another disk")
    if shutil.which("nvidia-smi") and not torch.cuda.is_available():
        hints.append("this machine has an NVIDIA driver, but this torch cannot use it")
    return {**facts, "hints": list(dict.fromkeys(hints))}


def _list_gpus() -> list[dict[str, Any]]:
    """Returns the GPUs that torch can use, with their free memory in bytes."""
    import torch

    gpus: list[dict[str, Any]] = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_name(index)
        gpus.append({"device": f"cuda:{index}", "name": name, "free": free, "total": total})
    if torch.backends.mps.is_available():
        gpus.append({"device": "mps", "name": platform.processor(), "free": 0})
    return gpus
