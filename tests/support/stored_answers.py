"""Answers about a stored document, compared with those about the same one in memory."""

from __future__ import annotations

from pathlib import Path

from esa_cli.models.loading.load import LoadedModel
from esa_cli.qa.api import Esa
from esa_cli.qa.presets.preset import Preset
from esa_cli.storage.library import Library


def check_stored_answers(
    loaded: LoadedModel, chosen: Preset, path: Path, question: str, root: Path
) -> None:
    """Answer and evidence are the same in memory, when the document is stored, and when the stored
    one is opened. `root`: of a new library."""
    answers = []
    for library in (None, Library(root), Library(root)):
        with Esa(loaded, chosen, library=library, rows="native") as reader:
            reply = reader.ask(question, [reader.ingest(str(path))], max_new_tokens=4)
        assert reply.evidence
        weights = [round(one.weight, 4) for one in reply.evidence]
        answers.append((reply.text, [one.start for one in reply.evidence], weights))
    assert answers[0] == answers[1] == answers[2]
