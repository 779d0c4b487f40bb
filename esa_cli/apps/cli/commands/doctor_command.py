"""`esa doctor`: versions, hardware and models of this machine, and missing parts."""

from __future__ import annotations

from typing import Any

from esa_cli.apps.cli.options import options


def doctor(as_json: options.Json = False) -> None:
    """Show versions, hardware, models, and what is missing.

    Kernels and disk, too; and what to do about what is missing.
    """
    from esa_cli.apps.cli.doctor_report import report
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
