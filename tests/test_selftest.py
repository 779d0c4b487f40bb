"""Self-tests on a tiny random model: what is read, asked and kept, and what recall means."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from esa_cli import models, preset
from esa_cli.errors import PresetError, UsageError
from esa_cli.journal import Journal
from esa_cli.probes import Haystack
from esa_cli.seen import Seen
from esa_cli.selftest.engine import KEY, Engine
from esa_cli.selftest.plan import Settings, dense_group, dense_length, depths, groups, tokens
from esa_cli.selftest.recall import Recall, positions, selected, why
from esa_cli.session import Session
from esa_cli.store import LayerStore

TINY = preset.load("tiny-random")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ESA_HOME", str(tmp_path_factory.mktemp("home")))
        yield models.load("random:llama", device="cpu", dtype="float32")


class Heard:
    """A listener that counts."""

    def __init__(self) -> None:
        self.readings: list[tuple[str, int, tuple[str, ...]]] = []
        self.rows: list[dict[str, Any]] = []

    def reading(
        self, test: str, length: int, names: Sequence[str], total: int
    ) -> Callable[[int, int], None]:
        self.readings.append((test, length, tuple(names)))
        return lambda done, all_: None

    def row(self, row: dict[str, Any]) -> None:
        self.rows.append(row)


def engine(loaded: Any, settings: Settings, path: Path | None = None, **how: Any) -> Engine:
    journal = Journal(path, {"command": "test"}, same=(), key=KEY)
    hay = Haystack.chronicle(settings.seed)
    return Engine(loaded, TINY, settings, hay, journal, Heard(), **how)


def settings_of(**changes: Any) -> Settings:
    return Settings(
        **{
            "tests": ("needle",),
            "methods": ("preset", "streaming-llm", "infllm"),
            "lengths": (1500,),
            "samples": 2,
            "dense": False,
            **changes,
        }
    )


def test_one_reading_serves_all_selective_methods(loaded: Any) -> None:
    made = engine(loaded, settings_of())
    with made.journal:
        made.run()
    assert made.listener.readings == [("needle", 1500, ("preset", "streaming-llm", "infllm"))]
    asked = [(row["method"], row["question"]) for row in made.listener.rows]
    assert len(asked) == len(set(asked)) == 6
    for row in made.listener.rows:
        assert len(row["recall"]["layers"]) == 2
        assert 0 < row["depth"] < 1
        assert row["tokens"]["document"] > 1400


def test_each_method_reads_for_itself_when_asked_to(loaded: Any) -> None:
    made = engine(loaded, settings_of(reading="own", methods=("streaming-llm", "infllm")))
    made.run()
    assert [names for _, _, names in made.listener.readings] == [("streaming-llm",), ("infllm",)]


def test_full_attention_reads_for_itself(loaded: Any) -> None:
    made = engine(loaded, settings_of(methods=("yarn", "streaming-llm")))
    made.run()
    assert [names for _, _, names in made.listener.readings] == [("streaming-llm",), ("yarn",)]
    full = [row for row in made.listener.rows if row["method"] == "yarn"]
    assert all(row["recall"]["mean"] == 1.0 for row in full)


def test_a_second_run_asks_only_what_is_missing(loaded: Any, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    first = engine(loaded, settings_of(methods=("preset",)), path)
    with first.journal:
        first.run()
    again = engine(loaded, settings_of(methods=("preset",)), path)
    with again.journal:
        again.run()
    assert not again.listener.readings
    more = engine(loaded, settings_of(methods=("preset", "quest")), path)
    with more.journal:
        more.run()
    assert {row["method"] for row in more.listener.rows} == {"quest"}


def test_the_same_run_gives_the_same_rows(loaded: Any) -> None:
    runs = [engine(loaded, settings_of()) for _ in range(2)]
    for made in runs:
        made.run()
    first, second = (
        [{k: v for k, v in row.items() if k != "time"} for row in made.listener.rows]
        for made in runs
    )
    assert first == second


def test_nothing_is_begun_after_the_time_limit(loaded: Any) -> None:
    made = engine(loaded, settings_of(), until=0.0)
    made.run()
    assert made.stopped
    assert not made.listener.rows


def test_a_wrong_method_is_named_before_anything_is_read(loaded: Any) -> None:
    made = engine(loaded, settings_of(methods=("preset", "infllmm")))
    with pytest.raises(UsageError, match="infllmm"):
        made.run()
    assert not made.listener.readings


def test_methods_have_the_presets_budget() -> None:
    for group in groups(settings_of(methods=("preset", "streaming-llm", "quest")), TINY, 900):
        for made in group.presets:
            window = made.window
            assert window.initial + window.selected + window.local == 4 + 64 + 64


def test_a_method_over_the_budget_is_refused() -> None:
    from esa_cli import recipes

    @recipes.recipe("greedy", about="", source="", cost="")
    def greedy(base: recipes.Base) -> dict[str, Any]:
        return {"window": {"selected": base.preset.window.selected + 1}}

    try:
        with pytest.raises(PresetError, match="takes 133 tokens where the preset has 132"):
            recipes.apply("greedy", TINY)
    finally:
        del recipes._RECIPES["greedy"]


def test_the_ceiling_is_plain_attention_inside_the_window(loaded: Any) -> None:
    (made,) = dense_group(TINY).presets
    assert dense_length(TINY) < made.context == made.window.dense
    with Session(loaded.model, loaded.tokenizer, made) as session:
        seen: list[Seen] = []
        session.attachment.watch = seen.append
        session.read("word " * 40)
        session.ask("Which word?", max_new_tokens=3)
    assert all(one.local == one.start for one in seen)


@pytest.mark.parametrize(
    ("text", "count"), [("32k", 32000), ("1m", 1_000_000), ("800", 800), ("1.5K", 1500)]
)
def test_lengths(text: str, count: int) -> None:
    assert tokens(text) == count


@pytest.mark.parametrize("text", ["", "k", "-3k", "many", "0", "12x"])
def test_what_is_no_length(text: str) -> None:
    with pytest.raises(UsageError, match="no number of tokens"):
        tokens(text)


def test_depths() -> None:
    assert depths(None) is None
    assert depths("4") == (0.125, 0.375, 0.625, 0.875)
    assert depths("0,50,100") == (0.0, 0.5, 1.0)
    for wrong in ("a", "120,3", "-5", ""):
        with pytest.raises(UsageError, match="no depths"):
            depths(wrong)


def seen_of(layer: int, far: Any, *, start: int = 100, local: int = 10) -> Seen:
    store = LayerStore(1, 4, torch.float32, torch.device("cpu"))
    queries, lse = torch.zeros(2, 3, 4), torch.zeros(2, 3)
    return Seen(layer, start, start + 3, 4, local, queries, store, far, lse, decoding=False)


def test_recall_counts_selected_and_local_tokens_layer_by_layer() -> None:
    recall = Recall()
    recall(seen_of(0, torch.tensor([0, 1, 2, 3, 50, 51])))
    recall(seen_of(1, torch.tensor([0, 1, 2, 3])))
    # By head: the first has one of the four tokens, the second three.
    recall(seen_of(2, [torch.tensor([50]), torch.tensor([51, 52, 53])]))
    assert recall.shares([range(50, 54)]) == [0.5, 0.0, 0.5]
    # Tokens 90 and 91 are local, 88 and 89 are not.
    assert recall.shares([range(88, 92)]) == [0.5, 0.5, 0.5]
    assert recall.shares([range(50, 54), range(88, 92)]) == [0.5, 0.25, 0.5]


def test_why() -> None:
    assert why(1.0, [0.0] * 8) == "answered"
    assert why(0.5, [0.0] * 8) == "not selected"
    assert why(0.0, [0.5, 0.5, *[0.0] * 6]) == "selected, not used"
    assert selected([0.5, 0.5, *[0.0] * 6])
    assert not selected([0.9, *[0.49] * 7])


def test_positions_of_characters() -> None:
    spans = [(0, 3), (3, 7), (7, 8), (8, 12)]
    assert positions(spans, 4, 8, head=10) == range(11, 13)
    assert positions(spans, 0, 1, head=10) == range(10, 11)
    assert positions(spans, 12, 14, head=10) == range(0)
