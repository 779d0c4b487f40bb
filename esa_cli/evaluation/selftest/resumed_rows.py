"""Rows of an earlier run that a resumed run keeps.

A row counts if test, method, length, sample and question match, and the document's text, the
method's settings and plugin files, and the prefill (shared or own) are unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from esa_cli.errors import UsageError
from esa_cli.evaluation.selftest.run_plan import SelftestSettings, groups
from esa_cli.evaluation.tasks.task_sample import TaskQuestion, TaskSample
from esa_cli.qa.presets.preset import Preset
from esa_cli.qa.presets.settings_hash import method_hash
from esa_cli.system.jsonl import Journal
from esa_cli.system.text import text_digest

KEY = ("test", "method", "length", "sample", "question")


def same_reading(journal: Journal, settings: SelftestSettings, preset: Preset) -> None:
    """Checks that each method has the same prefill, shared or own, as in the journal's rows.

    Which methods share a prefill depends on the methods of the run, and a method must not have rows
    of both kinds.

    Raises:
        UsageError: a method's prefill differs, or it is unknown. PresetError: its settings are
            wrong.
    """
    if not journal.rows:
        return
    made = groups(settings, preset, max(settings.lengths))
    now = {name: group.reading for group in made for name in group.names}
    for row in journal.rows:
        name, before = row["method"], row.get("reading")
        if not row.get("dense") and now.get(name, before) != before:
            raise UsageError(
                f"{journal.path} has results of {name} with the reading {before!r}, and with "
                f"these --methods it is {now[name]!r}",
                "give the same --methods as before, or another --out; a file that begins with "
                "--reading own takes further methods",
            )


@dataclass(frozen=True)
class ResumedRows:
    """A journal's rows about one document. Raises UsageError: the journal has answers about another
    document of the same test, length and sample."""

    journal: Journal
    sample: TaskSample

    def __post_init__(self) -> None:
        now, sample = text_digest(self.sample.text)[:16], self.sample
        here = (sample.test, sample.length, sample.index)
        for row in self.journal.rows:
            if (row["test"], row["length"], row["sample"]) == here and row.get("document") != now:
                raise self._other(f"about another document of {sample.length:,} tokens")

    def key_fields(self, method: str, question: TaskQuestion) -> dict[str, Any]:
        """The fields of `KEY`."""
        sample = self.sample
        values = (sample.test, method, sample.length, sample.index, question.key)
        return dict(zip(KEY, values, strict=True))

    def done(self, method: str, preset: Preset, question: TaskQuestion) -> bool:
        """True if the journal has this row. Raises UsageError: it has one by other settings."""
        fields = self.key_fields(method, question)
        row = self.journal.find(fields)
        if row is not None and row.get("settings") != method_hash(method, preset):
            raise self._other(f"by other settings of {method}")
        return row is not None

    def _other(self, what: str) -> UsageError:
        return UsageError(
            f"{self.journal.path} has results of {self.sample.test} {what}",
            "they are of another version, and would be mixed: choose another --out",
        )
