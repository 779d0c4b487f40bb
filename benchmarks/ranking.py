"""Fits how a finder's scores rank windows, and prints how many questions find their passage.

    python benchmarks/ranking.py TEXTS --library LIBRARY --out presets/finders/NAME

Of the development questions of `book_questions/` about English texts, each has windows with late
interaction, alone and with neighbours, and a BM25 score. The weights of late interaction make the
window of the labelled passage the most probable one among all windows of its text (a softmax).
Logistic regressions then give the log-odds that a window is of the labelled passage. The table has
the questions of each text by weights that were fitted on the other texts. Of questions in other
languages it shows what a weight of BM25 adds; `--words` is the weight that is written.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from book_questions import get_text_name, overlaps, texts
from torch import Tensor

DEPTHS = (1, 3, 8)
WORDS = (0.0, 1.0, 2.0, 4.0, 6.0)
PENALTY = 1e-3
"""The weight of the squares of the weights, of features with standard deviation 1."""


class Question(NamedTuple):
    """A question about the text `name` with its windows: `late` (4, W), `bm25` (W,), whether each
    is `right` (W,), and the passage finder that has the windows."""

    name: str
    late: Tensor
    bm25: Tensor
    right: Tensor
    finder: Any


@torch.no_grad()
def score_questions(folder: Path, library: Path, only: str) -> list[Question]:
    """The windows of all answerable questions about the development texts."""
    from esa_cli import Esa, Library
    from esa_cli.qa.finding.passage_finder import add_token_ranges

    out = []
    for head, questions, document in texts(folder, "dev", only):
        with Esa.load(library=Library(library)) as esa:
            books = add_token_ranges([esa.ingest(document)])
            finder = esa.search.get_passage_finder(books)
            for one in questions:
                right = [
                    one["kind"] != "absent" and overlaps((w.start, w.end), one["passage"])
                    for w in finder.index.windows
                ]
                reduced = esa.search.encode_question(one["question"], books)
                late = finder.score_by_late_interaction(reduced)
                bm25 = finder.index.compute_bm25_scores(one["question"])
                name = get_text_name(head["name"])
                out.append(Question(name, late.clone(), bm25.clone(), torch.tensor(right), finder))
        print(f"{head['name']}: {len(questions)} questions", flush=True)
    return out


def minimise(loss: Any, size: int) -> Tensor:
    """The weights (size,) with the lowest loss."""
    weights = torch.zeros(size, requires_grad=True)
    optimiser = torch.optim.LBFGS([weights], max_iter=300, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        value: Tensor = loss(weights)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    return weights.detach()


def fit_late_weights(questions: Sequence[Question]) -> Tensor:
    """The weights (4,) of late interaction that make right windows the most probable."""
    told = [one for one in questions if one.right.any()]
    scale = torch.cat([one.late for one in told], 1).std(1) + 1e-6

    def loss(weights: Tensor) -> Tensor:
        rest = torch.zeros(())
        for one in told:
            scores = (weights / scale) @ one.late
            rest = rest + scores.logsumexp(0) - scores[one.right].logsumexp(0)
        return rest / len(told) + PENALTY * weights.square().sum()

    return minimise(loss, len(scale)) / scale


def fit_odds(features_of_questions: Sequence[Tensor], questions: Sequence[Question]) -> list[float]:
    """An intercept, and the weights of features, a tensor (W, n) a question."""
    features = torch.cat(list(features_of_questions))
    right = torch.cat([one.right for one in questions]).float()
    mean, scale = features.mean(0), features.std(0)
    scaled = torch.cat((torch.ones(len(features), 1), (features - mean) / scale), 1)
    cross_entropy = torch.nn.functional.binary_cross_entropy_with_logits
    weights = minimise(lambda w: 1000 * cross_entropy(scaled @ w, right), len(mean) + 1)
    plain = weights[1:] / scale
    return [float(weights[0] - plain @ mean), *plain.tolist()]


def find_rank(question: Question, late: Tensor, words: float) -> int:
    """The place of the right passage among the default's eight, or 9."""
    from esa_cli.qa.finding.passage_finder import WindowScores, divide_by_highest

    share = divide_by_highest(question.bm25)
    total = late @ question.late + words * share
    scores = WindowScores(total, share, total > -1, question.late)
    windows = question.finder.index.windows
    places = zip(windows, question.right.tolist(), strict=True)
    right = {(window.start, window.end) for window, is_right in places if is_right}
    found = question.finder.pick_best_passages(scores, max(DEPTHS))
    ranks = [n for n, one in enumerate(found, 1) if (one.start, one.end) in right]
    return min(ranks, default=max(DEPTHS) + 1)


def count(ranks: Sequence[int]) -> str:
    return " | ".join(str(sum(rank <= depth for rank in ranks)) for depth in DEPTHS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="where the texts are")
    parser.add_argument("--library", type=Path, required=True, help="keeps the token indexes")
    parser.add_argument("--only", default="", help="only texts whose name matches")
    parser.add_argument("--words", type=float, default=4.0, help="for other languages")
    parser.add_argument("--out", type=Path, help="the finder's folder, for ranking.json")
    given = parser.parse_args()

    from esa_cli.qa.finding.passage_finder import divide_by_highest

    every = score_questions(given.folder, given.library, given.only)
    names = [{document.name for document in one.finder.documents} for one in every]
    is_foreign = [
        bool(one.finder.list_foreign_languages(own)) for one, own in zip(every, names, strict=True)
    ]
    english = [one for one, foreign in zip(every, is_foreign, strict=True) if not foreign]
    other = [one for one, foreign in zip(every, is_foreign, strict=True) if foreign]
    other = [one for one in other if one.right.any()]
    ranks = []
    for name in sorted({one.name for one in english}):
        late = fit_late_weights([one for one in english if one.name != name])
        own = [one for one in english if one.name == name and one.right.any()]
        ranks += [find_rank(one, late, 0.0) for one in own]
    late = fit_late_weights(english)
    print("| questions | n | first | among 3 | among 8 |\n|-|-|-|-|-|")
    print(f"| English | {len(ranks)} | {count(ranks)} |")
    for words in WORDS if other else ():
        ranks = [find_rank(one, late, words) for one in other]
        print(f"| other languages, BM25 with weight {words:.0f} | {len(ranks)} | {count(ranks)} |")
    sums = [late @ one.late for one in english]
    facts = {
        "late": late.tolist(), "words": given.words,
        "late_odds": fit_odds([torch.stack((s, s - s.max()), 1) for s in sums], english),
        "bm25_odds": fit_odds([divide_by_highest(one.bm25)[:, None] for one in english], english),
    }  # fmt: skip
    rounded = {
        name: [round(one, 3) for one in value] if isinstance(value, list) else value
        for name, value in facts.items()
    }
    print(json.dumps(rounded))
    if given.out:
        (given.out / "ranking.json").write_text(json.dumps(rounded) + "\n", "utf-8")


if __name__ == "__main__":
    main()
