"""What a self-test says before it has cost anything, or because it says less than it seems to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_selftest import TINY, engine, settings_of

from esa_cli.errors import LengthError
from esa_cli.qa.answering.session import Session
from esa_cli.qa.presets import preset

pytestmark = pytest.mark.usefixtures("short_answers")
SHORT = preset.load(
    "tiny-random", ["window.ending=0", "window.selected=400", "window.local=16", "window.chunk=32"]
)


def test_a_question_without_room_is_found_before_the_first_reading(
    loaded: Any, tmp_path: Path
) -> None:
    """`needle` would fit; `needles` asks for several at once, in many words."""
    made = engine(loaded, settings_of(tests=("needle", "needles"), methods=("preset",)), base=SHORT)
    with pytest.raises(LengthError, match="needles cannot be asked"):
        made.run()
    assert not made.listener.readings


def test_a_question_is_held_to_the_window_without_a_document(loaded: Any) -> None:
    with Session(loaded.model, loaded.tokenizer, SHORT) as session:
        session.check("Who?", max_new_tokens=4)
        with pytest.raises(LengthError, match="window has room"):
            session.check("Who? " * 300, max_new_tokens=4)


@pytest.mark.parametrize(("dense", "notes"), [(4000, 1), (None, 0)])
def test_a_text_that_is_in_view_of_all_says_nothing_of_a_selection(
    loaded: Any, dense: int | None, notes: int
) -> None:
    window = replace(TINY.window, dense=dense)
    base = TINY.model_copy(update={"window": window, "context": 8192})
    made = engine(loaded, settings_of(methods=("preset", "streaming-llm")), base=base)
    made.run()
    assert len(made.listener.notes) == notes
    assert all("in view of every method" in note for note in made.listener.notes)
    whole = [row["tokens"]["in_view"] >= row["tokens"]["document"] for row in made.listener.rows]
    assert all(whole) if notes else not any(whole)
