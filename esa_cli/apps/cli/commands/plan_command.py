"""`esa plan`: tokens, memory and time of a prefill, before a model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from esa_cli import models
from esa_cli.apps.cli import inputs
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.output.terminal import Reporter, print_json, print_table
from esa_cli.storage.library import Library
from esa_cli.system.machine import size_text, time_text

if TYPE_CHECKING:
    from esa_cli.qa.opening import Preflight


@options.command
def plan(
    documents: Annotated[
        list[str], typer.Argument(metavar="DOC...", help="Files, folders or patterns, or -.")
    ],
    *,
    model: ModelOptions,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Show the tokens, memory and time that documents will take.

    And whether they fit, before a model is loaded."""
    from esa_cli.qa.opening import answerable, prepare
    from esa_cli.qa.reading.reader_choice import reader_bytes, reader_of

    reader: int | None = 0
    with Reporter(quiet or as_json) as reporter:
        chosen = model.load_preset()
        gathered = inputs.read(documents, reporter).documents
        chosen = answerable(chosen, reporter, loads=False)
        ready = prepare(chosen, model.place, reporter)
        counts = [ready.model.count_tokens(document.text) for document in gathered]
        planner, choice = ready.planner, reader_of(ready.resolved.preset)
        if choice is not None:
            reader = reader_bytes(choice, planner.dtype.itemsize, planner.packing)
            planner.memory -= reader or 0
        planned, stored = planner.plan(sum(counts)), _stored_bytes(ready, counts)
    facts = {
        **_facts(chosen, planned),
        "weights": ready.model.stored_as or "plain",
        "stored_bytes": stored,
        "reader": chosen.answer.reader,
        "reader_bytes": reader,
    }
    if as_json:
        print_json(facts)
    else:
        print_table(("", ""), _rows(facts, planned))


def _stored_bytes(ready: Preflight, counts: Sequence[int]) -> int | None:
    """Bytes of the indexes of documents with so many tokens in the library, or of their
    rows, with --cache disk; None: nothing is stored, or latents are."""
    from esa_cli.qa.planning.row_storage import layout as row_layout

    planner, library, states = ready.planner, Library(), 0
    shape = planner.costs.shape
    if ready.index is not None:
        layout = ready.index.layout
    elif planner.cache == "disk" and planner.may_store_rows and not shape.shared:
        sizes = {"layers": shape.rows, "groups": shape.groups, "dim": shape.dim}
        layers, shapes = range(shape.rows), shape.shapes
        method = ready.resolved.method
        layout = row_layout(method, sizes, planner.dtype_name, "int8", layers, shapes=shapes)
        states = shape.states(planner.dtype.itemsize)
    else:
        return None
    return sum(library.size_of(tokens, layout, states) for tokens in counts)


def _rows(facts: dict[str, Any], plan: Any) -> list[tuple[str, str]]:
    """The table for people."""
    bytes_of, ratios = facts["memory_bytes"], plan.planner.ratios
    name = models.parse_reference(facts["model"]).name
    size, stored = facts["reader_bytes"], facts["stored_bytes"]
    size = "not known before it is fetched" if size is None else size_text(size)
    packed = "" if facts["weights"] == "plain" else f" ({facts['weights']})"
    of_all = f" ({ratios[1]:.2%} of keys and values)" if ratios else ""
    layers = f" ({plan.host_layers} of {plan.planner.costs.shape.rows} layers)"
    how = "as measured here before" if plan.rate_from == "measured" else "a rough guess"
    rows = [
        ("model", f"{name} ({plan.dtype} on {plan.device})", True),
        ("words the answers", f"{facts['reader']} ({size})", facts["reader"]),
        ("tokens", f"{plan.tokens:,}", True),
        ("memory needed", size_text(plan.needed), True),
        ("  weights", size_text(plan.weights) + packed, True),
        ("  keys and values", size_text(plan.keys_values), plan.keys_values),
        ("  in host memory", size_text(bytes_of["host_keys_values"]) + layers, plan.host_layers),
        ("  reduced keys", size_text(plan.reduced_keys) + of_all, plan.reduced_keys),
        ("  working memory", size_text(plan.working), True),
        ("memory available", size_text(plan.available), True),
        ("in the library", size_text(stored or 0), stored is not None),
        ("reading time", f"{time_text(plan.seconds)} ({how})", plan.operations),
        ("reading time", "none: nothing is read before it is asked", not plan.operations),
        ("operations of a step", f"{ratios[0]:.2%} of full attention's" if ratios else "", ratios),
        ("fits", f"yes, up to {plan.most_tokens:,} tokens" if plan.fits else "no", True),
        *((("  to make it fit", remedy, True)) for remedy in plan.remedies),
    ]
    return [(label, text) for label, text, holds in rows if holds]


def _facts(preset: Any, plan: Any) -> dict[str, Any]:
    ratios = plan.planner.ratios
    parts = (
        "needed", "weights", "keys_values", "reduced_keys", "working", "available",
        "host_keys_values", "host_available",
    )  # fmt: skip
    return {
        "model": preset.model,
        "preset": preset.name,
        "device": plan.device,
        "dtype": plan.dtype,
        "cache": plan.planner.cache,
        "host_layers": plan.host_layers,
        "tokens": plan.tokens,
        "memory_bytes": {part: getattr(plan, part) for part in parts},
        "seconds": round(plan.seconds, 1),
        "seconds_from": plan.rate_from if plan.operations else None,
        "ratios": ratios and dict(zip(("computation", "reduced_cache"), ratios, strict=True)),
        "fits": plan.fits,
        "most_tokens": plan.most_tokens,
        "remedies": list(plan.remedies),
    }
