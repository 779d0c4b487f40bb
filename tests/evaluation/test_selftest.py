"""Self-tests on a tiny random model: what is read, asked and kept, and what recall means."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import build_rope

from esa_cli.attention.selection import LogitSum
from esa_cli.attention.step import ChunkTrace, Positions
from esa_cli.errors import UsageError
from esa_cli.evaluation import row_run
from esa_cli.evaluation.selftest.run_plan import (
    KEY,
    SelftestSettings,
    build_shared_prefill_method,
    get_max_full_attention_tokens,
    group_methods_by_prefill,
    make_full_attention_group,
    parse_token_count,
)
from esa_cli.evaluation.selftest.score_tables import describe_invalid_row, make_score_tables
from esa_cli.evaluation.selftest.selftest_run import ChunkRecorder, SelftestRun, are_facts_in_view
from esa_cli.evaluation.tasks.task_sample import Haystack
from esa_cli.methods.infllm import InfLLMSelector
from esa_cli.qa.answering.session import Session
from esa_cli.qa.presets.preset import Preset, load_preset
from esa_cli.qa.presets.resolved_preset import resolve_preset
from esa_cli.storage.memory_store import MemoryKVStore
from esa_cli.system.jsonl import ResultsFile
from esa_cli.system.progress import Progress

pytestmark = pytest.mark.usefixtures("short_answers")
TINY = load_preset("tiny-random")


class Heard:
    """A reporter that keeps what it is told."""

    def __init__(self) -> None:
        self.readings, self.notes = list[str](), list[str]()
        self.questions = list[tuple[str, int, int]]()
        self.show_note = self.notes.append

    def start_progress(self, label: str, unit: str = "tokens") -> Progress:
        if unit == "answers":
            return lambda done, all_: self.questions.append((label, done, all_))
        self.readings.append(label)
        return lambda done, all_: None


def engine(
    loaded: Any,
    settings: SelftestSettings,
    path: Path | None = None,
    *,
    base: Preset = TINY,
    hay: Haystack | None = None,
    **how: Any,
) -> SelftestRun:
    journal = ResultsFile(path, {"command": "test"}, fixed_fields=(), key_fields=KEY)
    hay = hay or Haystack.from_chronicle(settings.seed)
    return SelftestRun(loaded, base, settings, hay, journal, Heard(), **how)


def settings_of(**changes: Any) -> SelftestSettings:
    usual = {"tests": ("needle",), "lengths": (1500,), "samples": 2, "dense": False}
    usual["methods"] = ("preset", "streaming-llm", "infllm")
    return SelftestSettings(**{**usual, **changes})


def test_one_reading_serves_all_selective_methods(loaded: Any, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    wanted = settings_of(methods=("preset", "streaming-llm", "infllm", "yarn"))
    made = engine(loaded, wanted, path)
    assert made.ask_all_questions()
    assert made.reporter.readings == [
        "needle at 1,500 tokens: reading for preset, streaming-llm, infllm",
        "needle at 1,500 tokens: reading for yarn",
    ]
    asked = [(row["method"], row["question"]) for row in made.journal.rows]
    assert len(asked) == len(set(asked)) == len(made.reporter.questions) == 8
    label = "needle at 1,500 tokens: answering"
    wanted_counts = [(label, done, count) for count in (6, 2) for done in range(count)]
    assert made.reporter.questions == wanted_counts
    for row in made.journal.rows:
        assert len(row["recall"]["layers"]) == 2
        assert 0 < row["depth"] < 1
        assert row["tokens"]["document"] > 1400
        assert row["method"] != "yarn" or row["recall"]["mean"] == 1.0
    again = engine(loaded, wanted)
    again.ask_all_questions()
    first, second = (
        [{k: v for k, v in row.items() if k not in ("time", "memory")} for row in one.journal.rows]
        for one in (made, again)
    )
    assert first == second


def test_a_second_run_asks_only_what_is_missing(loaded: Any, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    first = engine(loaded, settings_of(methods=("preset",)), path)
    with first.journal:
        first.ask_all_questions()
    whole = path.read_text()
    more = engine(loaded, settings_of(methods=("preset", "quest")), path)
    with more.journal, pytest.raises(UsageError, match="own, but this run's reading is shared"):
        more.ask_all_questions()
    more = engine(loaded, settings_of(methods=("preset", "quest"), reading="own"), path)
    with more.journal:
        more.ask_all_questions()
    assert more.reporter.readings == ["needle at 1,500 tokens: reading for quest"]
    for field in ("document", "settings"):
        changed = [json.loads(line) for line in whole.splitlines()]
        changed[-1][field] = "0123456789abcdef"
        path.write_text("".join(json.dumps(row) + "\n" for row in changed))
        other = engine(loaded, settings_of(methods=("preset",)), path)
        with other.journal, pytest.raises(UsageError, match=f"this run's {field} is"):
            other.ask_all_questions()
        assert not other.reporter.questions


def test_a_shared_prefill_is_observed_by_methods_that_observe_once(loaded: Any) -> None:
    """InfLLM's blocks of 64 and of 16 keep one account of what was attended to."""
    base = resolve_preset(TINY).method
    infllm = resolve_preset(
        group_methods_by_prefill(settings_of(methods=("infllm",)), TINY, 900)[0].presets["infllm"]
    ).method
    assert build_shared_prefill_method(base, [base, base]).selector == base.selector
    other = replace(infllm, selector=InfLLMSelector(block=16))
    sums = []
    for methods in ([base, infllm], [infllm, other]):
        with Session(loaded.model, loaded.tokenizer, TINY) as session:
            session.read(
                "The gate opens at nine. " * 40, method=build_shared_prefill_method(base, methods)
            )
            mass = session.cache.get_layer_kv_cache(0).states[0, InfLLMSelector].mass
            sums.append(mass.get_received_attention(0, session.document_tokens).clone())
    assert sums[0].sum() > 0
    assert torch.equal(*sums)


def test_no_question_is_begun_after_the_time_limit(
    loaded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = engine(loaded, settings_of(), deadline=3.5)
    # One look at the clock before the reading, one before each question.
    clock = iter(range(1, 100))
    monkeypatch.setattr(row_run.time, "monotonic", lambda: next(clock))
    assert not made.ask_all_questions()
    assert len(made.reporter.questions) == len(made.journal.rows) == 2


def test_no_selective_method_has_more_in_view_than_the_budget(loaded: Any) -> None:
    """Of what is cached, in any layer and for any head, at the question and while answering."""
    from esa_cli.methods import registry
    from esa_cli.qa.presets import resolved_preset

    names = [name for name in registry.RECIPES if not registry.find_method(name).full]
    assert {"esa", "infllm", "quest", "lm-infinite-topk", "esa-consensus"} <= set(names)
    for name in names:
        made = resolved_preset.replace_method(name, TINY, 900)
        with Session(loaded.model, loaded.tokenizer, made) as session:
            session.read("A word of many. " * 60)
            seen: list[ChunkTrace] = []
            session.ask("Which word?", max_new_tokens=3, trace=seen.append)
        assert {one.decoding for one in seen} == {True, False}
        for one in seen:
            assert one.local + max(map(len, one.list_far_positions())) <= 4 + 64 + 64, name


def test_the_ceiling_is_plain_attention_inside_the_window(loaded: Any) -> None:
    (made,) = make_full_attention_group(TINY).presets.values()
    assert get_max_full_attention_tokens(TINY) < made.context == made.window.dense
    with Session(loaded.model, loaded.tokenizer, made) as session:
        seen: list[ChunkTrace] = []
        session.read("word " * 40)
        session.ask("Which word?", max_new_tokens=3, trace=seen.append)
    assert seen
    assert all(one.local == one.start for one in seen)
    assert made.position["name"] == "true"


def test_lengths_are_parsed() -> None:
    counts = {"32k": 32000, "1m": 1_000_000, "800": 800, "1.5K": 1500}
    assert {text: parse_token_count(text) for text in counts} == counts
    for wrong in ("", "k", "-3k", "many", "0", "12x", "inf", "1e400", "nan", "32km"):
        with pytest.raises(UsageError, match="must be a number of tokens"):
            parse_token_count(wrong)


def seen_of(layer: int, far: Any, *, start: int = 100, local: int = 10) -> ChunkTrace:
    store = MemoryKVStore(1, 4, torch.float32, torch.device("cpu"))
    queries, lse = torch.zeros(2, 3, 4), torch.zeros(2, 3)
    places = Positions(torch.zeros(3), torch.zeros(4))
    return ChunkTrace(
        layer=layer, start=start, queries=queries, store=store, low=4, high=start - local,
        local=local, distance=9, scale=1.0, rope=build_rope(4), score=LogitSum(), far=far,
        near_positions=places, far_positions=[places], scaled=queries, max_distance=None, lse=lse,
    )  # fmt: skip


def test_recall_counts_selected_and_local_tokens_layer_by_layer() -> None:
    recall = ChunkRecorder()
    recall(seen_of(0, torch.tensor([0, 1, 2, 3, 50, 51])))
    recall(seen_of(1, torch.tensor([0, 1, 2, 3])))
    # By head: the first has one of the four tokens, the second three.
    recall(seen_of(2, [torch.tensor([50]), torch.tensor([51, 52, 53])]))
    assert recall.measure_facts_in_view([range(50, 54)]) == [(0.5, 0.5), (0.0, 0.0), (0.5, 0.75)]
    # Tokens 90 and 91 are local, 88 and 89 are not.
    assert recall.measure_facts_in_view([range(88, 92)]) == [(0.5, 0.5)] * 3
    both = recall.measure_facts_in_view([range(50, 54), range(88, 92)])
    assert both == [(0.5, 0.5), (0.25, 0.25), (0.5, 0.625)]
    # Where each head selects, one with the fact in view is enough.
    assert are_facts_in_view([0.5, 0.5, *[0.0] * 6])
    assert not are_facts_in_view([0.9, *[0.49] * 7])


def row(method: str = "esa", length: int = 8000, score: float = 1.0, **more: Any) -> dict[str, Any]:
    """A row as `esa selftest` writes it."""
    return {
        "test": "needle", "method": method, "length": length, "sample": 0, "seed": 0,
        "question": "q", "depth": None, "prompt": "Who?", "answer": "Bottle",
        "expected": ["Bottle"], "score": score, "recall": None, "why": None, "tokens": {},
        "time": {"read_s": 10.0, "ask_s": 1.0}, "dense": False, **more,
    }  # fmt: skip


def dense(score: float = 1.0, **more: Any) -> dict[str, Any]:
    return row("dense", **{"length": 100, "score": score, "dense": True, **more})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"score": 1.5}, "score"),
        ({"score": float("nan")}, "score"),
        ({"length": "8k"}, "TypeError"),
        ({"why": ["x"]}, "TypeError"),
        ({"recall": {"mean": 0.5, "layers": 2}}, "TypeError"),
        ({"method": None}, "method"),
        ({}, ""),
    ],
)
def test_an_invalid_row_is_described(changes: dict[str, Any], says: str) -> None:
    found = describe_invalid_row(row(**changes))
    assert (says in found) if says else found == ""


def test_figures_worked_out_by_hand() -> None:
    recalls = [{"mean": 0.5, "layers": [1.0, 0.0]}, {"mean": 0.25, "layers": [0.5, None]}]
    other, scores, misses = make_score_tables(
        [
            row("b", 16000, 1.0, why="answered", recall=recalls[0]),
            row("b", 16000, 0.5, why="not selected", recall=recalls[1], depth=0.1),
            row("b", 16000, 0.0, why="not selected"),
            row("b", 8000, 1.0), row("a", 8000, 0.0, depth=1.0),
            dense(1.0), dense(0.5, length=200), row("a", 8000, 1.0, test="a test"),
        ]
    )  # fmt: skip
    assert other.rows == [["a", "100", "1"]]
    assert scores.headers == ["method", "8k", "16k", "n"]
    assert scores.rows == [["a", "0 (0)", "–", "1"], ["b", "100 (133)", "50 (67)", "1–3"]]
    assert scores.note.startswith("dense ceiling 75 at 100, 200, n 2")
    assert ["needle", "b", "1", "2", "0", "1", "38", "0"] in misses.rows, "one reason is unknown"
    assert make_score_tables([]) == []
