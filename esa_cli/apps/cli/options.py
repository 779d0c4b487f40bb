"""Options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

DEFAULT_PRESET = "smollm2-135m"

Preset = Annotated[
    str,
    typer.Option("--preset", "-p", help="A name from `esa presets list`, or a YAML file."),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", "-m", help="A hub id, a folder, a .gguf file or a wheel, over the preset's."
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting of the preset, as window.selected=2048. Repeatable.",
    ),
]
Plugin = Annotated[
    list[Path] | None,
    typer.Option("--plugin", metavar="FILE", help="Run a plugin file first. Repeatable."),
]
Device = Annotated[
    str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, mps, or balanced (all GPUs).")
]
Dtype = Annotated[str, typer.Option("--dtype", help="auto, float32, bfloat16 or float16.")]
Methods = Annotated[
    str,
    typer.Option(
        "--methods", help="Names from `esa methods`, with commas; `preset`: the preset as it is."
    ),
]
TimeLimit = Annotated[
    float | None,
    typer.Option("--time-limit", min=0, metavar="MINUTES", help="Begin nothing after so long."),
]
Out = Annotated[
    Path | None, typer.Option("--out", help="JSON lines; a file that is there is continued.")
]
Keep = Annotated[bool, typer.Option("--keep", help="Put documents that are read into the library.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


def overrides(named: dict[str, str | None], settings: Sequence[str] | None) -> list[str]:
    """`key=value` texts for `preset.load`: the options given by name first, then --set."""
    given = [
        f"{key}={json.dumps(value, ensure_ascii=False)}"
        for key, value in named.items()
        if value is not None
    ]
    return [*given, *(settings or [])]


def names(text: str) -> tuple[str, ...]:
    """Names with commas between them, each once."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def load_plugins(files: Sequence[Path] | None) -> None:
    """Runs the plugin files. Raises PluginError."""
    if files:
        from esa_cli.methods.plugin_loading import load_file, load_installed

        load_installed()
        for file in files:
            load_file(file)
