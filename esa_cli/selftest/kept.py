"""What an earlier run left to be continued: rows that count, and rows of something else.

A row is known by its test, method, length, sample and question. All that could give it another
meaning under the same name must be the same, too: the document it was asked about, which another
version of a test may build otherwise, and the settings that its method stood for.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError
from ..journal import Journal
from ..preset import Preset
from ..probes.sample import Question, Sample

KEY = ("test", "method", "length", "sample", "question")


def text_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def settings_hash(preset: Preset) -> str:
    """Of all that a method's preset says but its name."""
    return text_hash(json.dumps(preset.model_dump(mode="json", exclude={"name"}), sort_keys=True))


@dataclass(frozen=True)
class Kept:
    """The rows of a journal that are about one document.

    Raises:
        UsageError: on making it, when the journal has answers about another document of that name.
    """

    journal: Journal
    sample: Sample

    def __post_init__(self) -> None:
        now, sample = text_hash(self.sample.text), self.sample
        here = (sample.test, sample.length, sample.index)
        for row in self.journal.rows:
            if (row["test"], row["length"], row["sample"]) == here and row.get("document") != now:
                raise self._other(f"about another document of {sample.length:,} tokens")

    def identity(self, method: str, question: Question) -> dict[str, Any]:
        """The fields of `KEY`."""
        sample = self.sample
        values = (sample.test, method, sample.length, sample.index, question.key)
        return dict(zip(KEY, values, strict=True))

    def done(self, method: str, preset: Preset, question: Question) -> bool:
        """Whether the journal has this row.

        Raises:
            UsageError: it has one by other settings.
        """
        identity = self.identity(method, question)
        row = self.journal.find(identity)
        if row is not None and row.get("settings") != settings_hash(preset):
            raise self._other(f"by other settings of {method}")
        return row is not None

    def _other(self, what: str) -> UsageError:
        return UsageError(
            f"{self.journal.path} holds results of {self.sample.test} {what}",
            "they are of another version, and would be mixed: choose another --out",
        )
