"""The votes of `esa heads` for each question, in a file by which a stopped search continues."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from esa_cli.system.jsonl import Journal

RANKED, HELD_OUT = "ranked", "held out"
"""The halves of the questions: heads are ranked by the first, sets are tried on the second."""
KEY = ("half", "number", "question")


class CollectedVotes(Protocol):
    """The votes for one question: of every head, and of sets of heads."""

    def each(self) -> tuple[Tensor, Tensor]: ...
    def hits(self) -> Tensor: ...


@dataclass(frozen=True)
class VoteRecord:
    """What is kept of the votes for one question.

    Args:
        found: (layers, H), true where a head finds the needle. margin: (layers, H), float64.
        hits: (X,), true where a set of heads finds it; empty where none was tried.
    """

    found: Tensor
    margin: Tensor
    hits: Tensor

    @classmethod
    def of_votes(cls, votes: CollectedVotes, half: str) -> VoteRecord:
        found, margin = votes.each()
        hits = votes.hits() if half == HELD_OUT else torch.zeros(0, dtype=torch.bool)
        return cls(found.cpu(), margin.cpu().double(), hits.cpu())

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> VoteRecord:
        return cls(
            torch.tensor(row["found"], dtype=torch.bool),
            torch.tensor(row["margin"], dtype=torch.float64),
            torch.tensor(row["hits"], dtype=torch.bool),
        )

    def as_row(self) -> dict[str, Any]:
        """JSON values, which give the same numbers again bit for bit."""
        return {
            "found": self.found.int().tolist(),
            "margin": self.margin.tolist(),
            "hits": self.hits.int().tolist(),
        }


def totals(records: Iterable[VoteRecord]) -> tuple[Tensor, Tensor]:
    """Times that each head found the needle, and its mean margin: (layers, H) both."""
    found, margins = zip(*((one.found, one.margin) for one in records), strict=True)
    return torch.stack(found).sum(dim=0), torch.stack(margins).mean(dim=0)


def set_hits(records: Sequence[VoteRecord]) -> list[int]:
    """Times that each set of heads found the needle."""
    hits: list[int] = torch.stack([one.hits for one in records]).sum(dim=0).tolist()
    return hits


class VoteJournal:
    """The records of one search; a context manager that holds its file open.

    Args:
        path: JSON lines; None: records are kept in memory alone. header: what is searched, by which
            a file is continued or refused.
    """

    def __init__(self, path: Path | None = None, header: Mapping[str, Any] | None = None) -> None:
        named = dict(header or {})
        same = [name for name in named if name not in ("esa", "command")]
        self._rows = Journal(path, named, same=same, key=KEY, wrong=_wrong)

    def __enter__(self) -> Self:
        self._rows.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._rows.__exit__(*error)

    @property
    def count(self) -> int:
        """Questions with a record."""
        return len(self._rows.rows)

    def record(
        self, half: str, number: int, question: str, measure: Callable[[], CollectedVotes]
    ) -> VoteRecord:
        """The record of a question, measured where the file lacks it.

        Raises:
            ResourceError, DocumentError: it cannot be written.
        """
        key = {"half": half, "number": number, "question": question}
        row = self._rows.find(key)
        if row is None:
            row = {**key, **VoteRecord.of_votes(measure(), half).as_row()}
            self._rows.add(row)
        return VoteRecord.of_row(row)


def _wrong(row: Mapping[str, Any]) -> str:
    """What is wrong with a row of a file; empty: nothing."""
    try:
        record = VoteRecord.of_row(row)
    except (KeyError, TypeError, ValueError) as error:
        return f"no numbers: {error}"
    return "" if record.found.shape == record.margin.shape else "found and margin differ in size"
