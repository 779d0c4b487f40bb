"""`esa compare`: one question by several methods, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from esa_cli.apps.cli import options
from esa_cli.apps.cli.commands.ask_command import Arguments, MaxTokens
from esa_cli.apps.cli.options import DEFAULT_PRESET

Passages = Annotated[
    int, typer.Option("--passages", min=0, help="Selected passages to show for each method.")
]
if TYPE_CHECKING:
    from esa_cli.apps.cli.request import Request
    from esa_cli.evaluation.selftest.method_comparison import MethodAnswer
    from esa_cli.system.progress import Progress

DEFAULT_METHODS = "preset,esa,infllm,streaming-llm"


def compare(
    arguments: Arguments = None,
    methods: options.Methods = DEFAULT_METHODS,
    passages: Passages = 2,
    max_new_tokens: MaxTokens = None,
    preset: options.Preset = DEFAULT_PRESET,
    model: options.Model = None,
    settings: options.Set = None,
    plugins: options.Plugin = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Answer one question by several methods, each within the same token budget.

    A document of at most window.dense tokens is in view of all of them.

    esa compare book.txt "Who is Ahab?" --methods preset,infllm,streaming-llm
    """
    from esa_cli.apps.cli.request import Request, split
    from esa_cli.errors import UsageError

    documents, question = split(arguments or [])
    options.load_plugins(plugins)
    overrides = options.overrides({"model": model}, settings)
    request = Request(
        documents, question, preset, overrides, max_new_tokens, device=device, dtype=dtype
    )
    names = options.names(methods)
    if not names:
        raise UsageError("no method", "`esa methods` lists all; `preset`: the preset as it is")
    _run(request, names, passages, as_json=as_json, quiet=quiet)


def _run(
    request: Request, names: tuple[str, ...], passages: int, *, as_json: bool, quiet: bool
) -> None:
    from esa_cli.apps.cli import progress_display as progress
    from esa_cli.apps.cli import request as steps
    from esa_cli.apps.cli.terminal import Reporter, print_json
    from esa_cli.evaluation.selftest.method_comparison import compare as run_compare
    from esa_cli.evaluation.selftest.preconditions import all_in_view
    from esa_cli.evaluation.selftest.run_plan import SelftestSettings, groups
    from esa_cli.models.quiet_transformers import quiet_transformers

    reporter = Reporter(quiet)
    try:
        ready = steps.prepare(request, reporter)
        settings = SelftestSettings((), names, (ready.plan.tokens,), dense=False)
        grouped = groups(settings, ready.preset, ready.plan.tokens)
        ready.plan.check()
        if note := all_in_view(
            ready.plan.tokens, [one for group in grouped for one in group.presets]
        ):
            reporter.note(f"esa: {note}", dim=False)

        def reading(names: Sequence[str]) -> Progress:
            return progress.token_progress(reporter, f"reading for {', '.join(names)}")

        with quiet_transformers():
            results = run_compare(
                steps.load(ready, request, reporter),
                ready.preset,
                grouped,
                ready.text,
                request.question,
                count=passages,
                reading=reading,
                most=request.max_new_tokens,
            )
    finally:
        reporter.settle()
    if as_json:
        rows = [_as_dict(result, ready.text) for result in results]
        print_json({"question": request.question, "model": ready.preset.model, "methods": rows})
    else:
        _print(results, ready.text)


def _as_dict(result: MethodAnswer, text: str) -> dict[str, Any]:
    from dataclasses import asdict

    out = asdict(result)
    for passage in out["passages"]:
        passage["text"] = text[passage["start"] : passage["end"]]
    return out


def _print(results: Sequence[MethodAnswer], text: str) -> None:
    from esa_cli.apps.cli.terminal import clean, print_table
    from esa_cli.system.machine import size_text, time_text

    rows = []
    for result in results:
        shared = " shared" if result.shared else ""
        read, memory = time_text(result.read_s) + shared, size_text(result.cache_bytes) + shared
        shown = [clean(" ".join(p.text(text).split())) for p in result.passages]
        seen = "\n".join(
            f"{p.weight:.0%} {one[:160]}" for p, one in zip(result.passages, shown, strict=True)
        )
        rows.append((result.method, result.answer, read, time_text(result.answer_s), memory, seen))
    headers = ("method", "answer", "reading", "answering", "reading's memory", "selected passages")
    print_table(headers, rows)
