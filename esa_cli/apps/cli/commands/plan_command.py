"""`esa plan`: tokens, memory and time of a prefill, before a model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from esa_cli import models
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.options import ModelOptions

if TYPE_CHECKING:
    from esa_cli.qa.opening import Preflight


@options.command
def plan(
    documents: Annotated[
        list[str], typer.Argument(metavar="DOC...", help="Files, folders or patterns, or -.")
    ],
    model: ModelOptions = options.DEFAULTS,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Show the tokens, memory and time that documents will take.

    And whether they fit, before a model is loaded."""
    from esa_cli.apps.cli import inputs
    from esa_cli.apps.cli.output.terminal import Reporter, print_json, print_table
    from esa_cli.qa.opening import answerable, prepare
    from esa_cli.system.machine import size_text

    reporter = Reporter(quiet or as_json)
    try:
        chosen = model.load_preset()
        found = inputs.read(documents, reporter).documents
        chosen = answerable(chosen, reporter, loads=False)
        ready = prepare(chosen, model.place, reporter)
        counts = [ready.model.count_tokens(one.text) for one in found]
        reader = _reader_bytes(ready)
        ready.planner.memory -= reader or 0
        made, stored = ready.planner.plan(sum(counts)), _stored_bytes(ready, counts)
    finally:
        reporter.settle()
    if as_json:
        weights = {"weights": ready.model.stored_as or "plain"}
        worded = {"reader": chosen.answer.reader, "reader_bytes": reader}
        print_json({**_as_dict(chosen, made), **weights, "stored_bytes": stored, **worded})
    else:
        rows = _rows(chosen, made, stored, ready.model.stored_as)
        if chosen.answer.reader is not None:
            size = "not known before it is fetched" if reader is None else size_text(reader)
            rows.insert(1, ("words the answers", f"{chosen.answer.reader} ({size})"))
        print_table(("", ""), rows)


def _reader_bytes(ready: Preflight) -> int | None:
    """Bytes of another model that words the answers; 0: there is none here, None: not known."""
    from esa_cli.qa.reading.reader_choice import reader_bytes, reader_of

    choice = reader_of(ready.resolved.preset)
    if choice is None:
        return 0
    return reader_bytes(choice, ready.planner.dtype.itemsize, ready.planner.packing)


def _stored_bytes(ready: Preflight, counts: Sequence[int]) -> int | None:
    """Bytes of the indexes of documents with so many tokens in the library, or of their rows, with
    --cache disk; None: nothing is stored, or latents are."""
    from esa_cli.qa.planning.row_storage import layout as row_layout
    from esa_cli.storage.library import Library

    planner, library, states = ready.planner, Library(), 0
    shape = planner.costs.shape
    if ready.index is not None:
        layout = ready.index.layout
    elif planner.cache == "disk" and planner.may_store_rows and not shape.shared:
        sizes = {"layers": shape.rows, "groups": shape.groups, "dim": shape.dim}
        every = range(shape.rows)
        method, wide = ready.resolved.method, shape.shapes
        layout = row_layout(method, sizes, planner.dtype_name, "int8", every, shapes=wide)
        states = shape.states(planner.dtype.itemsize)
    else:
        return None
    return sum(library.size_of(tokens, layout, states) for tokens in counts)


def _rows(preset: Any, plan: Any, stored: int | None, files: str) -> list[tuple[str, str]]:
    from esa_cli.system.machine import size_text

    kind = "rows" if plan.planner.may_store_rows else "index"
    step, reduced = [], size_text(plan.reduced_keys)
    if ratios := plan.planner.ratios:
        step = [("operations of a step", f"{ratios[0]:.2%} of full attention's, in a long text")]
        reduced += f" ({ratios[1]:.2%} of keys and values)"
    rows = [
        ("model", f"{models.parse_reference(preset.model).name} ({plan.dtype} on {plan.device})"),
        ("tokens", f"{plan.tokens:,}"),
        ("memory needed", size_text(plan.needed)),
        ("  weights", size_text(plan.weights) + (f" ({files})" if files else "")),
        *([("  keys and values", size_text(plan.keys_values))] if plan.keys_values else []),
        *_host_rows(plan),
        *([("  reduced keys", reduced)] if plan.reduced_keys else []),
        ("  working memory", size_text(plan.working)),
        ("memory available", size_text(plan.available)),
        *([] if stored is None else [(f"{kind} in the library", size_text(stored))]),
        ("reading time", _reading_time(plan)),
        *step,
        ("fits", f"yes, up to {plan.most_tokens:,} tokens" if plan.fits else "no"),
    ]
    return rows + [("  to make it fit" if i == 0 else "", r) for i, r in enumerate(plan.remedies)]


def _reading_time(plan: Any) -> str:
    from esa_cli.system.machine import time_text

    if not plan.operations:
        return "none: nothing is read before it is asked, passages are found by their words"
    how = "as measured here before" if plan.rate_from == "measured" else "a rough guess"
    return f"{time_text(plan.seconds)} ({how})"


def _host_rows(plan: Any) -> list[tuple[str, str]]:
    """Where some layers' keys and values are in the memory of the device's host."""
    from esa_cli.system.machine import size_text

    if not plan.host_layers:
        return []
    layers = f"of {plan.host_layers} of {plan.planner.costs.shape.rows} layers"
    there, have = size_text(plan.host_keys_values), size_text(plan.host_available)
    return [("  in host memory", f"{there} ({layers}; {have} available)")]


def _as_dict(preset: Any, plan: Any) -> dict[str, Any]:
    ratios = plan.planner.ratios
    return {
        "model": preset.model,
        "preset": preset.name,
        "device": plan.device,
        "dtype": plan.dtype,
        "cache": plan.planner.cache,
        "host_layers": plan.host_layers,
        "tokens": plan.tokens,
        "memory_bytes": {
            "needed": plan.needed,
            "weights": plan.weights,
            "keys_values": plan.keys_values,
            "reduced_keys": plan.reduced_keys,
            "working": plan.working,
            "available": plan.available,
            "host_keys_values": plan.host_keys_values,
            "host_available": plan.host_available,
        },
        "seconds": round(plan.seconds, 1),
        "seconds_from": plan.rate_from if plan.operations else None,
        "ratios": ratios and dict(zip(("computation", "reduced_cache"), ratios, strict=True)),
        "fits": plan.fits,
        "most_tokens": plan.most_tokens,
        "remedies": list(plan.remedies),
    }
