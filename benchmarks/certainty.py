"""How certain answers are: fits the combination of a reader, and prints a risk-coverage curve.

    python benchmarks/certainty.py features TEXTS --split dev --out features.jsonl
    python benchmarks/certainty.py features TEXTS --set answer.finder=null --out bm25.jsonl
    python benchmarks/certainty.py fit features.jsonl --bm25 bm25.jsonl --out presets/adapters/NAME
    python benchmarks/certainty.py curve features.jsonl
    python benchmarks/certainty.py curve rows.jsonl          # of book_questions.py

`features` reads the passages that are found for the questions of `book_questions/` and writes what
the reader says of each. `fit` makes the conditional logistic regressions that give the probability
that a passage's span is the answer, out of all passages of a question and none of them:
`combination.json` of the adapter's folder. The first one chooses the passages that are read again
in context, the second one has the features of these readings, too. `curve` prints, for each
probability from which an answer would be given, how many questions are answered and how many of
these answers are right; then a reliability table, which compares the probabilities with the shares
of right answers, and the counts of each certainty.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from book_questions import get_text_name, texts
from common import append_line, load_lines, split_bare_words
from torch.nn.utils.rnn import pad_sequence

PRECISION = 0.91
"""The share of right ones among answers above the threshold, on the development questions. 0.85 is
promised of certain ones, whose sentence must also answer alone, as users' own questions are harder:
in two trials 53 of 59 certain answers were right with 0.93, and 58 of 64 with 0.91, which gives
more of them."""
REFUSED = 0.03
"""The share of answerable development questions whose right answer is not given, because it is too
improbable. When 5 % of all answers, right or wrong, were not given, ten of twelve unanswerable
questions of a trial got an answer, and its users found that worse than passages alone."""
ONCE = 8
"""The number of features of a passage with late interaction that is read once."""
Row = dict[str, Any]


class Answer(NamedTuple):
    """How probable an answer is, whether it is right, and whether its question has an answer."""

    probability: float
    right: bool
    answerable: bool


def is_right(words: list[str], accepted: Sequence[list[str]]) -> bool:
    """Whether an answer's words contain an accepted answer."""
    return any(f" {' '.join(one)} " in f" {' '.join(words)} " for one in accepted)


@torch.inference_mode()
def read_features(esa: Any, book: Any, question: Row) -> Row:
    """What the reader says of each passage that is found for a question."""
    from esa_cli.qa.finding.passage_finder import add_token_ranges

    text, asked, placed = book.document.text, question["question"], add_token_ranges([book])
    with esa.run_without_method():
        count = esa.preset.answer.passages
        passages = esa.search.find_passages_to_read(asked, placed, count)
        candidates = esa.spans.read_candidates(asked, passages, {book.document.name: text})
    accepted = [split_bare_words(one) for one in question["also"]]
    if question["answer"]:
        accepted.append(split_bare_words(text[slice(*question["answer"])]))
    rows = []
    for passage, (span, answer, features) in zip(passages, candidates, strict=True):
        if span is not None:
            quoted = passage.text[span.start : span.end]
            right = is_right(split_bare_words(quoted), accepted)
            rows.append({"features": features, "answer": answer, "right": right})
    return {"id": question["id"], "kind": question["kind"], "passages": rows}


def write_features(given: argparse.Namespace) -> None:
    from esa_cli import Esa, Library

    library = Library(given.library) if given.library else None
    for head, questions, document in texts(given.folder, given.split, given.only):
        with Esa.load(given.preset, given.set, library=library) as esa:
            # Certain answers are read in context, too.
            esa.spans.combination = esa.spans.combination._replace(answer=math.inf)
            by_words = esa.preset.answer.finds_by_bm25_only
            book = esa.open(document) if by_words else esa.ingest(document)
            for question in questions:
                row = read_features(esa, book, question)
                append_line(given.out, {"text": head["name"], **row})
        print(f"{head['name']}: {len(questions)} questions", flush=True)


def leave_out_context(row: Row) -> Row:
    """A question without the features of passages that are read again in context."""
    passages = [{**one, "features": one["features"][:ONCE]} for one in row["passages"]]
    return {**row, "passages": passages}


def fit_weights(rows: Sequence[Row]) -> torch.Tensor:
    """The weights (features,) that make the right passages of a question probable, or none of its
    passages if none is right, with a small penalty."""
    groups = [row["passages"] for row in rows]
    passages = [one for group in groups for one in group]
    features = torch.tensor([one["features"] for one in passages], dtype=torch.float64)
    mean, scale = features[:, 1:].mean(0), features[:, 1:].std(0)
    scaled = torch.cat((features[:, :1], (features[:, 1:] - mean) / scale), 1)
    none = torch.zeros_like(scaled[:1])  # comes first in each group, with log-odds of 0
    each = [torch.cat((none, own)) for own in scaled.split([len(group) for group in groups])]
    flags = [[one["right"] for one in group] for group in groups]
    right = pad_sequence([torch.tensor([not any(own), *own]) for own in flags], batch_first=True)
    real = pad_sequence([torch.ones(len(own), dtype=torch.bool) for own in each], batch_first=True)
    padded = pad_sequence(each, batch_first=True)
    weights = torch.zeros(scaled.shape[1], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        logits = (padded @ weights).masked_fill(~real, -torch.inf)
        chosen = logits.masked_fill(~right, -torch.inf)
        out = (logits.logsumexp(1) - chosen.logsumexp(1)).mean()
        out = out + 1e-3 * weights[1:].square().sum()
        out.backward()  # type: ignore[no-untyped-call]
        return out

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    plain = weights.detach()[1:] / scale
    return torch.cat(((weights.detach()[0] - plain @ mean)[None], plain))


def answer_questions(rows: Sequence[Row], weights: torch.Tensor) -> list[Answer]:
    """The best span of each question."""
    from esa_cli.qa.reading.span import compute_probabilities

    out = []
    for row in rows:
        passages = row["passages"]
        logits = [float(torch.tensor(one["features"]).double() @ weights) for one in passages]
        probabilities = compute_probabilities(logits, [one["answer"] for one in passages])
        found = zip(logits, probabilities, [one["right"] for one in passages], strict=True)
        _, probability, right = max(found, default=(0.0, 0.0, False))
        out.append(Answer(probability, right, row["kind"] != "absent"))
    return out


def answer_held_out_questions(rows: Sequence[Row]) -> list[Answer]:
    """The answers about each text by weights that were fitted on the other texts."""
    out: list[Answer] = []
    for name in sorted({get_text_name(row["text"]) for row in rows}):
        own = [row for row in rows if get_text_name(row["text"]) == name]
        out += answer_questions(own, fit_weights([row for row in rows if row not in own]))
    return out


def choose_thresholds(found: Sequence[Answer]) -> tuple[float, float]:
    """The least probabilities of a certain answer, and of an answer at all."""
    ranked, certain, count = sorted(found, reverse=True), 1.0, 0
    for number, answer in enumerate(ranked, 1):
        count += answer.right
        if count >= PRECISION * number:
            certain = answer.probability
    answerable = [answer for answer in found if answer.answerable]
    right = sorted(answer.probability for answer in answerable if answer.right)
    return certain, right[int(REFUSED * len(answerable))]


def print_curve(found: Sequence[Answer]) -> None:
    """One line a tenth of the questions, the most probable answers first."""
    ranked = sorted(found, reverse=True)
    print("| share of questions answered | probability from | right | wrong: unanswerable |")
    print("|-|-|-|-|")
    for tenth in range(1, 11):
        first = ranked[: round(tenth * len(ranked) / 10)]
        right = sum(one.right for one in first) / len(first)
        absent = sum(not one.answerable for one in first)
        print(f"| {tenth * 10} % | {first[-1].probability:.2f} | {right:.0%} | {absent} |")


def print_reliability(found: Sequence[Answer]) -> None:
    """One line a tenth of the probability: a calibrated mean is the share of right answers."""
    print("\n| probability | answers | mean | right |\n|-|-|-|-|")
    for tenth in range(10):
        group = [one for one in found if min(int(one.probability * 10), 9) == tenth]
        if group:
            mean = sum(one.probability for one in group) / len(group)
            right = sum(one.right for one in group) / len(group)
            span = f"{tenth / 10:.1f} to {(tenth + 1) / 10:.1f}"
            print(f"| {span} | {len(group)} | {mean:.2f} | {right:.2f} |")


def print_certainties(found: Sequence[Answer], certainties: Sequence[str]) -> None:
    print("\n| certainty | answers | right | of them to unanswerable questions |\n|-|-|-|-|")
    for name in ("answer", "perhaps", "nothing"):
        group = [one for one, own in zip(found, certainties, strict=True) if own == name]
        right = f"{sum(one.right for one in group) / max(len(group), 1):.0%}"
        absent = sum(not one.answerable for one in group)
        print(f"| {name} | {len(group)} | {right} | {absent} |")


def print_rows(rows: Sequence[Row]) -> None:
    """The curve, and how often answers of each certainty are right, of rows of book_questions."""
    found = [
        Answer(row["probability"] or 0.0, row["exact"] or row["contains"], row["kind"] != "absent")
        for row in rows
    ]
    print_curve(found)
    print_reliability(found)
    print_certainties(found, [row["certainty"] for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("features", "fit", "curve"))
    parser.add_argument("folder", type=Path, help="the texts, or the file of features or rows")
    parser.add_argument("--split", choices=("dev", "test", "papers"), default="dev")
    parser.add_argument("--only", default="", help="only texts whose name matches")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--library", type=Path)
    parser.add_argument("--bm25", type=Path, help="features with --set answer.finder=null, to fit")
    parser.add_argument("--out", default="")
    given = parser.parse_args()

    if given.what == "features":
        write_features(given)
        return
    rows = load_lines(given.folder)
    if "passages" not in rows[0]:
        print_rows(rows)
        return
    found = answer_held_out_questions(rows)
    sure, least = choose_thresholds(found)
    print_curve(found)
    print_reliability(found)
    levels = [sum(one.probability >= level for level in (least, sure)) for one in found]
    print_certainties(found, [("nothing", "perhaps", "answer")[level] for level in levels])
    if given.what == "fit":
        once = [leave_out_context(row) for row in rows]
        files = {"weights": once, "bm25_weights": load_lines(given.bm25), "context_weights": rows}
        facts: dict[str, Any] = {
            name: [round(value, 4) for value in fit_weights(each).tolist()]
            for name, each in files.items()
        }
        facts |= {"answer": round(sure, 3), "perhaps": round(least, 3)}
        path = Path(given.out) / "combination.json"
        path.write_text(json.dumps(facts) + "\n", "utf-8")
        print(f"\n{path}: {facts}")


if __name__ == "__main__":
    main()
