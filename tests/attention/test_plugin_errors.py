"""What fails in a plugin is named as the plugin's, wherever it is called; our own bugs are not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from conftest import copy_registries
from torch import Tensor

from esa_cli.attention.method import Method
from esa_cli.attention.parts import (
    Compressor,
    PositionEncoding,
    Score,
    Selector,
    check_selected_offsets,
    report_plugin_errors,
)
from esa_cli.attention.positions import ContiguousPositions
from esa_cli.attention.selection import LogitSum, TopKSelector
from esa_cli.attention.step import Projection
from esa_cli.attention.window import Window
from esa_cli.errors import PluginError, PresetError
from esa_cli.evaluation.conformance import make_step
from esa_cli.methods.registry import register
from esa_cli.models.attachment.attach import attach
from esa_cli.qa.answering.session import Session
from esa_cli.qa.presets.preset import load_preset


@dataclass(frozen=True)
class Gives(Selector):
    """A selector that gives what it is told to, or raises it."""

    out: Any = None

    def select(self, step: Any, budget: int) -> Any:
        if isinstance(self.out, BaseException):
            raise self.out
        return self.out


@dataclass(frozen=True)
class Scored(Score):
    out: Any = None

    def scores(self, step: Any) -> Any:
        if isinstance(self.out, Exception):
            raise self.out
        return self.out


@dataclass(frozen=True)
class Stands(PositionEncoding):
    """Positions that are given, or an error."""

    out: Any = None
    distance = 9

    def near(self, local: int, chunk: int, start: int, far: int) -> Any:
        if isinstance(self.out, Exception):
            raise self.out
        return self.out

    def far(self, at: Tensor, local: int, chunk: int, start: int) -> Any:
        return self.near(local, chunk, start, 0)


@pytest.mark.parametrize(
    "out",
    [
        torch.tensor([2, 1]),
        torch.tensor([1, 1]),
        torch.tensor([-1, 1]),
        torch.tensor([10**6]),
        torch.arange(5),
        [torch.tensor([0]), torch.tensor([10**6])],
    ],
)
def test_selections_outside_the_middle_or_the_budget_are_refused(out: Any) -> None:
    with pytest.raises(ValueError, match="ascending offsets below"):
        check_selected_offsets(out, make_step(), 4)
    check_selected_offsets(torch.tensor([0, 3]), make_step(), 4)
    check_selected_offsets([torch.tensor([0]), torch.arange(0)], make_step(), 4)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
        torch.OutOfMemoryError("CUDA out of memory"),
    ],
)
def test_memory_that_runs_out_is_nobodys_fault(error: Exception) -> None:
    with pytest.raises(type(error)), report_plugin_errors({"selector": Gives()}):
        raise error


def test_bugs_of_our_own_stay_bugs() -> None:
    with pytest.raises(KeyError), report_plugin_errors({"selector": TopKSelector()}):
        raise KeyError("k")
    with pytest.raises(PresetError), report_plugin_errors({"selector": Gives()}):
        raise PresetError("for a person")


def test_a_plugin_cannot_end_the_process() -> None:
    with pytest.raises(PluginError, match="SystemExit"), report_plugin_errors({"s": Gives()}):
        raise SystemExit(0)
    with pytest.raises(KeyboardInterrupt), report_plugin_errors({"s": Gives()}):
        raise KeyboardInterrupt


class FailingMaps(Projection):
    """Maps that fail on more than the one key that is tried."""

    def queries(self, q: Tensor) -> Tensor:
        return q

    def keys(self, k: Tensor) -> Tensor:
        if k.shape[0] > 1:
            raise KeyError("map")
        return k


@dataclass(frozen=True)
class MapsFail(Compressor):
    def fit(self, layer: int, moments: Any) -> Any:
        return FailingMaps()


@dataclass(frozen=True)
class ScaleFails(ContiguousPositions):
    def query_scale(self, at: Tensor) -> Any:
        raise KeyError("s")


@dataclass(frozen=True)
class FrequenciesFail(ContiguousPositions):
    def frequencies(self, inverse: Tensor, factor: float, length: int) -> Any:
        raise KeyError("f")


@pytest.mark.parametrize(
    ("part", "about"),
    [
        ({"position": ScaleFails()}, "position ScaleFails fails"),
        ({"position": FrequenciesFail()}, "position FrequenciesFail fails"),
        ({"compressor": MapsFail(), "score": LogitSum()}, "compressor MapsFail fails"),
        ({"selector": Gives(KeyError("k"))}, "selector Gives fails"),
        ({"selector": Gives(None)}, "selector Gives fails"),
        ({"selector": Gives(torch.tensor([10**6]))}, "selector Gives fails"),
        ({"score": Scored(torch.arange(99.0))}, "score Scored fails"),
        ({"score": Scored(KeyError("k"))}, "score Scored fails"),
        ({"position": Stands(KeyError("k"))}, "position Stands fails"),
    ],
)
def test_in_a_model_the_part_is_named(loaded: Any, part: dict[str, Any], about: str) -> None:
    usual = {"selector": TopKSelector(), "position": ContiguousPositions()}
    method = Method(Window(2, 4, 8, 16), **{**usual, **part})
    attachment = attach(loaded.model, method)
    try:
        ids = torch.arange(64)[None] % loaded.model.config.vocab_size
        with pytest.raises(PluginError, match=about), torch.inference_mode():
            loaded.model(input_ids=ids, past_key_values=attachment.new_cache())
    finally:
        attachment.detach()


def test_a_distance_below_zero_is_refused(loaded: Any) -> None:
    for name in ("contiguous", "esa", "true"):
        given = load_preset("tiny-random", [f"position.name='{name}'", "position.distance=-5"])
        with pytest.raises(PresetError, match="distance must be a whole number from 0, got -5"):
            Session(loaded.model, loaded.tokenizer, given)


@dataclass(frozen=True)
class FailsInSurvey(TopKSelector):
    """A selector with a survey pass, of which one member fails."""

    member: str = ""

    def _fail(self, member: str) -> None:
        if member == self.member:
            raise KeyError(member)

    @property
    def surveys(self) -> bool:
        self._fail("surveys")
        return True

    def new_turn_state(self) -> Any:
        self._fail("new_turn_state")
        return 1

    def survey_complete(self, step: Any) -> bool:
        self._fail("survey_complete")
        return False

    def start_turn_after_survey(self, turn: Any) -> Any:
        self._fail("start_turn_after_survey")
        return self.new_turn_state()


@pytest.mark.parametrize("member", ["new_turn_state", "survey_complete", "start_turn_after_survey"])
def test_in_a_question_the_selector_is_named(
    loaded: Any, member: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_registries(monkeypatch)
    register("selector", "fails-in-survey")(FailsInSurvey)
    options = [f"selector={{name: fails-in-survey, member: {member}}}"]
    with Session(loaded.model, loaded.tokenizer, load_preset("tiny-random", options)) as session:
        session.read("The gate opens at nine. " * 30)
        length = session.document_tokens
        with pytest.raises(PluginError, match="selector FailsInSurvey fails: KeyError"):
            session.ask("When?")
        assert session.cache.get_seq_length() == length
