"""What fails in a plugin is named as the plugin's, wherever it is called; our own bugs are not."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from conftest import copy_registries
from torch import Tensor

from esa_cli.attention.interfaces import Positions, Projection
from esa_cli.attention.method import Method
from esa_cli.attention.parts import Compressor, PositionEncoding, Score, Selector
from esa_cli.attention.plugin_errors import (
    blame_plugin,
    far_positions,
    near_positions,
)
from esa_cli.attention.positions import Contiguous
from esa_cli.attention.scoring import SumScore
from esa_cli.attention.selection import TopK, checked_selection
from esa_cli.attention.window import Window
from esa_cli.errors import PluginError, PresetError
from esa_cli.evaluation.conformance.random_steps import make_step
from esa_cli.methods.part_registry import register
from esa_cli.methods.voting import VoteScore
from esa_cli.models.attachment.attach import attach
from esa_cli.qa.answering.session import Session
from esa_cli.qa.presets import preset
from esa_cli.qa.presets.resolved_preset import resolve


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
    ("out", "about"),
    [
        (None, "must return one selection, or 6"),
        (3, "must return one selection, or 6"),
        ([torch.tensor([1])] * 2, "must return one selection, or 6"),
        (torch.tensor([1.0, 2.0]), "int64 offsets in one dimension"),
        (torch.tensor([[1, 2]]), "int64 offsets in one dimension"),
        (torch.tensor(1), "int64 offsets in one dimension"),
        ([[1, 2]] * 6, "int64 offsets in one dimension"),
        (torch.tensor([2, 1]), "ascending offsets below"),
        (torch.tensor([1, 1]), "ascending offsets below"),
        (torch.tensor([-1, 1]), "ascending offsets below"),
        (torch.tensor([10**6]), "ascending offsets below"),
        (torch.arange(5), "at most 4"),
        (torch.arange(3, device="meta"), "not on the meta device"),
        ([torch.arange(3, device="meta")] * 6, "not on the meta device"),
        (SystemExit(0), "selector Gives fails: SystemExit: 0"),
        (BaseException("b"), "selector Gives fails: BaseException: b"),
        (KeyError("k"), "selector Gives fails: KeyError: 'k'"),
        (RuntimeError("shapes\nmore"), "selector Gives fails: RuntimeError: shapes"),
    ],
)
def test_what_a_selector_may_not_give(out: Any, about: str) -> None:
    step = make_step()
    assert step.queries.shape[0] == 6
    with pytest.raises(PluginError, match=about) as caught:
        checked_selection(Gives(out), step, 4)
    assert "\n" not in caught.value.message
    assert checked_selection(Gives(torch.tensor([0, 3])), step, 4).tolist() == [0, 3]  # type: ignore[union-attr]
    assert len(checked_selection(Gives([torch.tensor([0])] * 6), step, 4)) == 6


@pytest.mark.parametrize(
    ("out", "about"),
    [
        (None, "numbers, got NoneType"),
        (torch.zeros(3), r"numbers, got \(3,\)"),
        (torch.zeros(2, 3), r"numbers, got \(2, 3\)"),
        (torch.zeros(make_step().middle, device="meta"), "numbers, got a tensor on the meta"),
        (IndexError("i"), "score Scored fails: IndexError: i"),
    ],
)
def test_what_a_score_may_not_give(out: Any, about: str) -> None:
    """Also where a selector of ours asks it."""
    step = make_step(score=Scored(out))
    calls: list[Callable[[], Any]] = [step.scores, lambda: checked_selection(TopK(), step, 4)]
    for call in calls:
        with pytest.raises(PluginError, match=about):
            call()
    good = make_step(score=Scored(torch.arange(step.middle).float()))
    assert checked_selection(TopK(), good, 2).tolist() == [step.middle - 2, step.middle - 1]  # type: ignore[union-attr]


def test_what_a_position_may_not_give() -> None:
    some = Positions(torch.arange(3), torch.arange(3))
    assert near_positions(Stands(some), 0, 3, 0, 0) is some
    assert far_positions(Stands(some), torch.arange(3), 0, 3, 0) == [some]
    for out, about in (
        (tuple(some), "must return Positions, got tuple"),
        (Positions(*(one.to("meta") for one in some)), "must return numbers, got the meta device"),
        (ValueError("v"), "fails: ValueError: v"),
    ):
        with pytest.raises(PluginError, match=f"position Stands {about}"):
            near_positions(Stands(out), 0, 3, 0, 0)
        with pytest.raises(PluginError, match=f"position Stands {about}"):
            far_positions(Stands(out), torch.arange(3), 0, 3, 0)


@dataclass(frozen=True)
class FailsToObserve(TopK):
    def observe(self, step: Any) -> None:
        raise ZeroDivisionError("z")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
        torch.OutOfMemoryError("CUDA out of memory"),
    ],
)
def test_memory_that_runs_out_is_nobodys_fault(error: Exception) -> None:
    with pytest.raises(type(error)), blame_plugin("selector", Gives()):
        raise error


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_output_that_a_plugin_closes_is_its_fault(
    stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, stream, io.StringIO())
    about = f"selector Gives must leave sys.{stream} open"
    with pytest.raises(PluginError, match=about), blame_plugin("selector", Gives()):
        getattr(sys, stream).close()


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit])
def test_what_comes_from_outside_is_nobodys_fault(error: type[BaseException]) -> None:
    with pytest.raises(error), blame_plugin("selector", Gives()):
        raise error


def test_bugs_of_our_own_stay_bugs() -> None:
    with pytest.raises(KeyError), blame_plugin("selector", TopK()):
        raise KeyError("k")
    with pytest.raises(PresetError), blame_plugin("selector", Gives()):
        raise PresetError("for a person")


@dataclass(frozen=True)
class Fits(Compressor):
    fit_tokens = 8

    def fit(self, layer: int, moments: Any) -> Any:
        raise KeyError("map")


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
class ScaleFails(Contiguous):
    def query_scale(self, at: Tensor) -> Any:
        raise KeyError("s")


@dataclass(frozen=True)
class ScaleIsANumber(Contiguous):
    def query_scale(self, at: Tensor) -> Any:
        return 2.0


@dataclass(frozen=True)
class FrequenciesFail(Contiguous):
    def frequencies(self, inverse: Tensor, factor: float, length: int) -> Any:
        raise KeyError("f")


@pytest.mark.parametrize(
    ("part", "about"),
    [
        ({"position": ScaleFails()}, "position ScaleFails fails"),
        ({"position": ScaleIsANumber()}, "position ScaleIsANumber fails"),
        ({"position": FrequenciesFail()}, "position FrequenciesFail fails"),
        ({"compressor": MapsFail(), "score": SumScore()}, "compressor FailingMaps fails"),
        ({"selector": Gives(KeyError("k"))}, "selector Gives fails"),
        ({"selector": FailsToObserve()}, "selector FailsToObserve fails: ZeroDivisionError: z"),
        ({"score": Scored(KeyError("k"))}, "score Scored fails"),
        ({"position": Stands(KeyError("k"))}, "position Stands fails"),
        ({"compressor": Fits(), "score": replace(VoteScore(), shortlist=4)}, "compressor Fits"),
    ],
)
def test_in_a_model_the_part_is_named(loaded: Any, part: dict[str, Any], about: str) -> None:
    method = Method(
        **{"window": Window(2, 4, 8, 16), "selector": TopK(), "position": Contiguous(), **part}
    )
    attachment = attach(loaded.model, method)
    try:
        ids = torch.arange(64)[None] % loaded.model.config.vocab_size
        with pytest.raises(PluginError, match=about), torch.inference_mode():
            loaded.model(input_ids=ids, past_key_values=attachment.new_cache())
    finally:
        attachment.detach()


def test_a_distance_below_zero_is_refused(loaded: Any) -> None:
    for name in ("contiguous", "esa", "true", "streaming"):
        given = preset.load("tiny-random", [f"position.name='{name}'", "position.distance=-5"])
        with pytest.raises(PresetError, match="distance must be a whole number from 0, got -5"):
            Session(loaded.model, loaded.tokenizer, given)


@dataclass(frozen=True)
class FailsInSurvey(TopK):
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

    def after_survey(self, turn: Any) -> Any:
        self._fail("after_survey")
        return self.new_turn_state()


@dataclass(frozen=True)
class LimitFails(Contiguous):
    @property
    def max_distance(self) -> Any:
        raise KeyError("limit")


@dataclass(frozen=True)
class RotatesFails(Scored):
    @property
    def rotates(self) -> Any:
        raise KeyError("rotates")


@pytest.mark.parametrize("member", ["new_turn_state", "survey_complete", "after_survey"])
def test_in_a_question_the_selector_is_named(
    loaded: Any, member: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_registries(monkeypatch)
    register("selector", "fails-in-survey")(FailsInSurvey)
    options = [f"selector={{name: fails-in-survey, member: {member}}}"]
    with Session(loaded.model, loaded.tokenizer, preset.load("tiny-random", options)) as session:
        session.read("The gate opens at nine. " * 30)
        length = session.document_tokens
        with pytest.raises(PluginError, match="selector FailsInSurvey fails: KeyError"):
            session.ask("When?")
        assert session.cache.get_seq_length() == length


def test_a_member_that_fails_is_named_when_the_method_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copy_registries(monkeypatch)
    register("selector", "fails-in-survey")(FailsInSurvey)
    register("score", "rotates-fails")(RotatesFails)
    register("position", "limit-fails")(LimitFails)
    for options, about in (
        ("selector={name: fails-in-survey, member: surveys}", "selector FailsInSurvey fails"),
        ("score={name: rotates-fails}", "score RotatesFails fails"),
        ("position={name: limit-fails}", "position LimitFails fails"),
    ):
        with pytest.raises(PluginError, match=about):
            resolve("tiny-random", [options])
