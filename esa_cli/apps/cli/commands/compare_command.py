"""`esa compare`: one question by several methods, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from esa_cli.apps.cli.commands.ask_command import Arguments
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.options import ModelOptions

Top = Annotated[int, option("--top N", "Passages that each answer rests on.", min=0)]
if TYPE_CHECKING:
    from esa_cli.system.progress import Progress

DEFAULT_METHODS = "preset,esa,infllm,streaming-llm"


@options.command
def compare(
    arguments: Arguments = None,
    methods: options.Methods = DEFAULT_METHODS,
    top: Top = 2,
    max_new_tokens: options.MaxTokens = None,
    *,
    model: ModelOptions,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Answer one question by several methods, and compare.

    Each has the same token budget. A document of at most window.dense tokens is in view of all
    of them.

    esa compare book.txt "Who is Ahab?" --methods preset,infllm,streaming-llm
    """
    from esa_cli.apps.cli import inputs
    from esa_cli.apps.cli.inputs import split
    from esa_cli.apps.cli.output.progress_display import token_progress
    from esa_cli.apps.cli.output.terminal import Reporter, print_json
    from esa_cli.documents.document import join
    from esa_cli.errors import UsageError
    from esa_cli.evaluation.selftest.run_plan import SelftestSettings, all_in_view, groups
    from esa_cli.evaluation.selftest.run_plan import compare as run_compare
    from esa_cli.models.files.quiet_transformers import quiet_transformers
    from esa_cli.qa.opening import prepare
    from esa_cli.qa.presets.resolved_preset import FROM_TEXT
    from esa_cli.storage import check_in_memory

    documents, question = split(arguments or [], verb="compare")
    names = options.names(methods)
    if not names:
        raise UsageError(
            "--methods must name a method, got none",
            "`esa methods` lists all; `preset`: the preset as it is",
        )
    reporter = Reporter(quiet)

    def reading(names: Sequence[str]) -> Progress:
        return token_progress(reporter, f"reading for {', '.join(names)}")

    try:
        check_in_memory(model.cache)
        chosen = model.method_preset()
        text = join(inputs.read(documents, reporter).documents)
        ready = prepare(chosen, model.place, reporter, attaches=True)
        tokens = ready.model.count_tokens(text)
        settings = SelftestSettings((), names, (tokens,), dense=False)
        grouped = groups(settings, chosen, tokens)
        presets = [p for group in grouped if group.reading != "text" for p in group.presets]
        if presets:
            ready.model.planner(ready.resolved).check(tokens)
        if len(presets) < len(names):
            ready.model.check({FROM_TEXT: chosen}, tokens)
        if note := all_in_view(tokens, presets):
            reporter.note(f"esa: {note}", dim=False)
        with quiet_transformers():
            rows = run_compare(
                ready.model.load(reporter), chosen, grouped, text, question,
                count=top, reading=reading, most=max_new_tokens,
            )  # fmt: skip
    finally:
        reporter.settle()
    if as_json:
        print_json({"question": question, "model": chosen.model, "methods": rows})
    else:
        _print(rows)


def _print(results: Sequence[dict[str, Any]]) -> None:
    from esa_cli.apps.cli.output.terminal import one_line, print_table
    from esa_cli.system.machine import size_text, time_text

    headers = ("method", "answer", "reading", "answering", "reading's memory", "evidence")
    rows = []
    for result in results:
        shared = " shared" if result["shared"] else ""
        seen = (
            f"{passage['weight']:.0%} {one_line(' '.join(passage['text'].split()))[:160]}"
            for passage in result["passages"]
        )
        times = time_text(result["read_s"]) + shared, time_text(result["answer_s"])
        memory = size_text(result["cache_bytes"]) + shared
        rows.append((result["method"], result["answer"], *times, memory, "\n".join(seen)))
    print_table(headers, rows)
