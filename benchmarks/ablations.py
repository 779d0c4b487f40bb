"""Ablations of the paper's method: the share of a needle that each layer selects.

A text with needles is prefilled once, and each question once under each variation. The table has
the recall (mean over layers), the layers with more than half of the needle, and the questions for
which a quarter of the layers had it (what `esa selftest` calls selected). Answers do not count, so
the result does not depend on what a small model makes of a passage.

    python benchmarks/ablations.py --length 16k --out benchmarks/results/ablations.jsonl
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from common import append_line, token_counter, tokens

PAPER = [
    "window.ending=null", "selector.name=topk", "selector.proximity=3", "score.name=sum",
    "position.name=esa", "position.distance=6144",
]  # fmt: skip
VOTE = ["score.name=vote", "score.contrast=false", "score.heads=[]"]
CONSENSUS = ["selector.name=consensus", "selector.passage=1", "selector.rounds=1"]
ROWS: list[tuple[str, str, list[str]]] = [
    *[("proximity", f"epsilon {e}", [*PAPER, f"selector.proximity={e}"]) for e in (0, 1, 3, 5)],
    *[("dimensions", f"R = {r}", [*PAPER, f"compressor.rank={r}"]) for r in (16, 48, 96)],
    ("dimensions", "all (F = 192)", [*PAPER, "compressor.name=none"]),
    ("dimensions", "R = 48, by PCA", [*PAPER, "compressor.name=pca", "compressor.rank=48"]),
    ("score", "sum of heads (Eq. 2-3), whole keys", [*PAPER, "compressor.name=none"]),
    ("score", "sum of heads, rotated", [*PAPER, "compressor.name=none", "score.rotate=true"]),
    ("score", "individual: best head (Eq. 3)",
     [*PAPER, *VOTE, "score.rule=max", "score.normalise=query", "score.rotate=false"]),
    ("score", "best head, each by its own maximum",
     [*PAPER, *VOTE, "score.rule=max", "score.rotate=false"]),
    ("score", "each head's softmax", [*PAPER, *VOTE]),
    ("agreement", "each head's softmax, summed through the layers", [*PAPER, *VOTE, *CONSENSUS]),
    ("agreement", "and the prompt's own words taken off",
     [*PAPER, *VOTE, *CONSENSUS, "score.contrast=true"]),
    ("agreement", "and only six heads vote (the default, in one round)", ["selector.rounds=1"]),
    ("agreement", "and the question read twice (the default)", []),
]  # fmt: skip


def measure(session: Any, sample: Any, spans: Any, head: int) -> dict[str, Any]:
    """Recall of the needles over all questions of a sample."""
    from esa_cli.evaluation.selftest.selftest_run import (
        IN_VIEW,
        ChunkRecorder,
        are_facts_in_view,
        find_token_positions,
    )

    shares, selected, started = [], 0, time.perf_counter()
    for question in sample.questions:
        recall = ChunkRecorder()
        session.ask(question.text, max_new_tokens=1, trace=recall)
        facts = [sample.facts[i] for i in question.facts]
        places = [find_token_positions(spans, f.start, f.end, head) for f in facts]
        means, best_heads = zip(*recall.measure_facts_in_view(places), strict=True)
        shares.append(means)
        selected += are_facts_in_view(best_heads)
    layers = [sum(layer) / len(shares) for layer in zip(*shares, strict=True)]
    return {
        "recall": round(sum(layers) / len(layers), 4),
        "layers_with_half": round(
            sum(share >= IN_VIEW for one in shares for share in one) / len(shares), 1
        ),
        "selected": selected,
        "of": len(shares),
        "layers": [round(layer, 3) for layer in layers],
        "s_per_question": round((time.perf_counter() - started) / len(shares), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", default="default")
    parser.add_argument("--length", type=tokens, default=16000)
    parser.add_argument("--questions", type=int, default=16)
    parser.add_argument("--only", default="", help="run only this group of rows")
    parser.add_argument("--out", default="")
    arguments = parser.parse_args()
    from esa_cli import models
    from esa_cli.evaluation.tasks import TASKS
    from esa_cli.evaluation.tasks.task_sample import Haystack, TaskRequest
    from esa_cli.qa.answering.session import Session
    from esa_cli.qa.presets.preset import load_preset

    loaded = models.load(load_preset(arguments.preset).model)

    size = token_counter(loaded.tokenizer)

    hay = Haystack.from_chronicle(0)
    request = TaskRequest(arguments.length, size, hay, arguments.questions, 0)
    (sample,) = TASKS["needle"].samples(request)
    print(f"{size(sample.text):,} tokens, {len(sample.questions)} questions\n")
    print("| variation | recall | layers with half of it | selected | s |\n|---|---|---|---|---|")
    base = ["score.name=sum", "selector.name=topk"]
    read_with = ""
    session = Session(loaded.model, loaded.tokenizer, load_preset(arguments.preset, base))
    with session:
        spans, head = (
            session.prompt.find_token_offsets(sample.text),
            len(session.prompt.encode_prompt_start()),
        )
        for group, name, overrides in ROWS:
            if arguments.only and group != arguments.only:
                continue
            chosen = load_preset(arguments.preset, overrides)
            needs = read_with
            if chosen.score["name"] == "sum":
                needs = json.dumps([chosen.compressor, chosen.score, chosen.position])
            if needs != read_with or not session.document_tokens:
                # Another compressor is fitted while the text is read.
                session.empty_cache()
                session.use_preset(load_preset(arguments.preset, [*base, *_compressor(overrides)]))
                session.read(sample.text)
                read_with = needs
            session.use_preset(chosen)
            row = {"group": group, "variation": name, "set": overrides}
            row |= measure(session, sample, spans, head)
            print(
                f"| {name} | {row['recall']:.1%} | {row['layers_with_half']} "
                f"| {row['selected']}/{row['of']} | {row['s_per_question']} |",
                flush=True,
            )
            append_line(arguments.out, {"length": arguments.length, **row})


def _compressor(overrides: list[str]) -> list[str]:
    return [one for one in overrides if one.startswith(("compressor.", "position.", "score.rot"))]


if __name__ == "__main__":
    main()
