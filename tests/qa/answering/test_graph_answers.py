"""A session's answers decoded by graphs, and the setting `decoding`; graphs are simulated."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from simulated_graph import SimulatedGraph

from esa_cli.errors import PresetError, UsageError
from esa_cli.evaluation.selftest.method_comparison import SelectionCounts
from esa_cli.qa.answering.session import Answer, Session
from esa_cli.qa.evidence.attention_weights import AttentionWeights
from esa_cli.qa.presets import preset
from esa_cli.qa.presets.settings_hash import settings_hash
from esa_cli.storage import growing_rows

TEXT = "The gate opens at nine and the market closes at dusk. " * 30
QUESTIONS = ["When does the gate open?", "What closes?"]
KEPT = (
    "selector={name: consensus, passage: 16, share: 0.5, rounds: 2, answer: keep}",
    "score={name: vote}",
    "position={name: contiguous}",
    "window.ending=0",
)


class Made(SimulatedGraph):
    """Counts the graphs of a test."""

    count = 0

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        type(self).count += 1


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> type[Made]:
    monkeypatch.setattr(Made, "count", 0)
    return Made


def answered(session: Session, question: str) -> tuple[Answer, torch.Tensor]:
    weights = AttentionWeights(session.layers, session.document_tokens)
    return session.ask(question, max_new_tokens=30, trace=weights), weights.weights


def check_answers(session: Session, graphs: type[Made]) -> None:
    """Answers and weights of forward calls, and then by recordings, are the same."""
    want = [answered(session, one) for one in QUESTIONS]
    session.decoding.make = graphs
    for question, (answer, weights) in zip(QUESTIONS, want, strict=True):
        got, weighed = answered(session, question)
        assert got.answer_tokens > 20
        assert (got.text, got.answer_tokens) == (answer.text, answer.answer_tokens)
        torch.testing.assert_close(weighed, weights, rtol=1e-4, atol=1e-6)
    assert graphs.count == len(QUESTIONS) + 1  # the very first one is compared alone


@pytest.mark.parametrize("opened", [False, True])
def test_answers_and_evidence_are_those_of_forward_calls(
    loaded: Any, graphs: type[Made], opened: bool
) -> None:
    with Session(loaded.model, loaded.tokenizer, preset.load("tiny-random", KEPT)) as session:
        session.read(TEXT)
        if opened:
            session.open([session.prefilled_document()])
        check_answers(session, graphs)
        assert len(session.cache.memories[0].store) == session.document_tokens


def test_answers_of_which_each_token_selects(
    loaded: Any, graphs: type[Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growing_rows, "in_one_segment", lambda device: True)
    # Among equal scores, which equal bytes have, rounding would choose.
    settings = "window.local=300", "selector.proximity=0", "position={name: contiguous}"
    with Session(loaded.model, loaded.tokenizer, preset.load("tiny-random", settings)) as session:
        session.read("".join(chr(at) for at in range(0x4E00, 0x4E00 + 400)))
        check_answers(session, graphs)


def test_each_token_selects(loaded: Any, graphs: type[Made]) -> None:
    """Recorded tokens are one chunk, and count as each alone."""
    with Session(loaded.model, loaded.tokenizer, preset.load("tiny-random", KEPT)) as session:
        session.read(TEXT)
        found = []
        for make in (None, graphs):
            session.decoding.make = make
            found.append(SelectionCounts(torch.zeros(session.document_tokens)))
            session.ask(QUESTIONS[0], max_new_tokens=15, trace=found[-1])
    assert graphs.count == 2
    torch.testing.assert_close(found[1].counts, found[0].counts)


def test_short_answers_and_those_that_are_to_be_eager_have_no_graph(
    loaded: Any, graphs: type[Made]
) -> None:
    for more, tokens in (("decoding=eager", 30), ("decoding=auto", 9)):
        chosen = preset.load("tiny-random", (*KEPT, more))
        with Session(loaded.model, loaded.tokenizer, chosen) as session:
            session.read(TEXT)
            session.decoding.make = graphs
            session.ask(QUESTIONS[0], max_new_tokens=tokens)
    assert graphs.count == 0


def test_a_graph_that_is_asked_for_is_refused_where_there_is_none(
    loaded: Any, graphs: type[Made]
) -> None:
    chosen = preset.load("tiny-random", ("decoding=graph",))
    with Session(loaded.model, loaded.tokenizer, chosen) as session:
        session.read(TEXT)
        with pytest.raises(UsageError, match="needs a CUDA device"):
            session.ask(QUESTIONS[0])
        session.decoding.make = graphs
        with pytest.raises(UsageError, match="256 tokens do not fit into the local window of 64"):
            session.ask(QUESTIONS[0])
        assert session.cache.get_seq_length() == session.document_tokens
    with pytest.raises(PresetError, match="decoding"):
        preset.load("tiny-random", ("decoding=fast",))


def test_recording_is_tried_once(loaded: Any) -> None:
    tried = []

    class Failing(SimulatedGraph):
        def record(self, function: Any) -> torch.Tensor:
            tried.append(function)
            raise RuntimeError("operation not permitted when stream is capturing")

    with Session(loaded.model, loaded.tokenizer, preset.load("tiny-random", KEPT)) as session:
        session.read(TEXT)
        want = session.ask(QUESTIONS[0], max_new_tokens=20).text
        session.decoding.make = Failing
        assert [session.ask(QUESTIONS[0], max_new_tokens=20).text for _ in range(2)] == [want] * 2
    assert len(tried) == 1


def test_answers_whose_tokens_select_are_compared_and_fail_alone(
    loaded: Any, graphs: type[Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay of a kept selection says nothing of one in which each token selects."""
    monkeypatch.setattr(growing_rows, "in_one_segment", lambda device: True)

    class Failing(SimulatedGraph):
        def record(self, function: Any) -> torch.Tensor:
            raise RuntimeError

    kept, each = (preset.load("tiny-random", (*one, "window.local=300")) for one in (KEPT, ()))
    with Session(loaded.model, loaded.tokenizer, each) as session:
        session.read(TEXT)
        outcomes = session.decoding.outcomes
        for chosen, make, want in (
            (kept, graphs, {True: True}),
            (each, Failing, {True: True, False: False}),
            (each, graphs, {True: True, False: False}),
            (kept, graphs, {True: True, False: False}),
        ):
            session.use(chosen)
            session.decoding.make = make
            made = graphs.count
            session.ask(QUESTIONS[0], max_new_tokens=15)
            assert outcomes == want
        assert graphs.count == made + 1


def test_decoding_is_no_setting_that_makes_other_rows() -> None:
    both = [preset.load("tiny-random", (f"decoding={one}",)) for one in ("auto", "eager")]
    assert settings_hash(both[0]) == settings_hash(both[1])
