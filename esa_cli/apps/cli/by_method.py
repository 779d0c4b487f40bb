"""`--method NAME`: a whole method over the preset, for commands that ask.

    preset with --set  ->  recipe  ->  the settings it changes, as texts that go where --set goes

So nothing behind the options knows of it. Some methods are made for one length (see
`method_presets.stretches`): only a command that knows its documents before the model is loaded
has these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from esa_cli.errors import UsageError

if TYPE_CHECKING:
    from esa_cli.apps.cli.request import Request
    from esa_cli.apps.cli.terminal import Reporter
    from esa_cli.documents.document import Document
    from esa_cli.qa.preset import Preset

Method = Annotated[
    str | None,
    typer.Option("--method", help="A whole method over the preset, by its name in `esa methods`."),
]


def alone(name: str | None, parts: Mapping[str, str | None]) -> None:
    """Refuses a method beside options that name its parts. Raises UsageError."""
    given = [f"--{part.partition('.')[0]}" for part, value in parts.items() if value is not None]
    if name is not None and given:
        raise UsageError(
            f"--method {name} and {given[0]}: a method has parts of its own",
            "give --method, or the parts",
        )


def settings(name: str, chosen: Preset, length: int = 0) -> list[str]:
    """Texts for `preset.load`, behind those `chosen` was loaded with, that make it the method.

    Args:
        length: tokens of the documents.

    Raises:
        UsageError: no such method. PresetError: its settings do not hold.
    """
    from esa_cli.methods import recipes
    from esa_cli.qa import method_presets
    from esa_cli.system.strict_yaml import dump_yaml

    before, after = chosen.model_dump(), method_presets.apply(name, chosen, length).model_dump()
    return [f"{key}={dump_yaml(after[key])}" for key in recipes.LAID if after[key] != before[key]]


def of_any_length(name: str | None, preset_name: str, given: Sequence[str]) -> list[str]:
    """`given` and the method's settings, where nobody knows yet how long documents will be.

    Raises:
        UsageError: no such method, or it is made for one length. PresetError.
    """
    if name is None:
        return list(given)
    from esa_cli.qa import method_presets, preset

    chosen = preset.load(preset_name, given)
    method_presets.for_length(name, chosen, 0)
    return [*given, *settings(name, chosen)]


def of_documents(
    request: Request,
    name: str | None,
    documents: Sequence[Document],
    reporter: Reporter,
    *,
    shelf: bool = False,
) -> Request:
    """The request with the method's settings, for documents of their length together.

    Args:
        shelf: the library's documents are asked, too.

    Raises:
        UsageError: no such method, or the library with one that is made for one length.
        PresetError, ModelError.
    """
    if name is None:
        return request
    reporter.stage("import", 0, None)
    from esa_cli.apps.cli.preflight import Place, look
    from esa_cli.documents.document import join
    from esa_cli.qa import method_presets, preset

    chosen, length = preset.load(request.preset, request.overrides), 0
    if method_presets.stretches(name, chosen):
        if shelf:
            raise UsageError(
                f"method {name!r} is made for the length of its documents: --library has any",
                "name the documents in place of --library",
            )
        known = look(chosen, Place.of(request.device, request.dtype), reporter)
        length = known.tokens(join(documents))
    return replace(request, overrides=[*request.overrides, *settings(name, chosen, length)])
