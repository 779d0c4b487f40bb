"""Read once, ask often: what a session keeps, gives back, and survives. Tiny random model."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
from saved_projections import save_learned_projections
from tokenizers import processors

from esa_cli.attention.compression import Linear
from esa_cli.errors import LengthError, PresetError, UsageError
from esa_cli.models.text_passes.generation import AnswerStreamer
from esa_cli.qa.answering.prompt import PromptEncoder
from esa_cli.qa.answering.session import Session
from esa_cli.qa.presets.preset import Prompt, load_preset
from esa_cli.storage.memory_store import locate_document_texts

TEXT = "The gate opens at nine and the market closes at dusk. " * 30
QUESTION = "When does the gate open?"


@pytest.fixture
def session(loaded: Any) -> Iterator[Session]:
    with Session(loaded.model, loaded.tokenizer, load_preset("tiny-random")) as session:
        yield session


def test_questions_leave_no_trace(session: Session) -> None:
    session.read(TEXT)
    length = session.cache.get_seq_length()
    first = session.ask(QUESTION)
    assert session.cache.get_seq_length() == length == session.document_tokens
    session.ask("What closes at dusk?")
    assert session.ask(QUESTION).text == first.text


def test_interrupted_reading_is_resumed(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esa_cli.qa.answering.session.FEED", 100)
    session.read(TEXT)
    want = session.ask(QUESTION).text

    def stop(done: int, total: int) -> None:
        if done >= 500:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        session.read(TEXT, stop)
    assert session.document_tokens == 500 == session.cache.get_seq_length()
    with pytest.raises(UsageError, match="only 500 of"):
        session.ask(QUESTION)
    session.resume()
    assert session.ask(QUESTION).text == want


def test_a_forgotten_document_frees_its_memory(session: Session) -> None:
    session.read(TEXT)
    session.ask(QUESTION)
    cache = ref(session.cache)
    session.empty_cache()
    gc.collect()
    assert cache() is None
    assert session.document_tokens == session.cache.nbytes == 0


def test_a_second_interruption_leaves_nothing_behind(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the rows of the turn are taken back, after the first layer's."""
    session.read(TEXT)
    want = session.ask(QUESTION).text

    def stop(*given: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(session.cache.kv_layers[1], "crop", stop)
        with pytest.raises(KeyboardInterrupt):
            session.ask("What closes?", max_new_tokens=2)
    assert session.ask(QUESTION).text == want
    lengths = {len(one.store) for one in session.cache.layer_kv_caches}
    assert lengths == {session.document_tokens}


def test_another_preset_asks_the_same_reading(session: Session) -> None:
    session.read(TEXT)
    before = session.ask(QUESTION).text
    contiguous = ["position.name=contiguous", "position.distance=100"]
    session.use_preset(load_preset("tiny-random", contiguous))
    session.ask(QUESTION)
    session.use_preset(load_preset("tiny-random"))
    assert session.ask(QUESTION).text == before
    with pytest.raises(PresetError, match="must be prefilled with the compressor"):
        session.use_preset(load_preset("tiny-random", ["compressor.name=none"]))


def test_nothing_read_and_nothing_asked(session: Session) -> None:
    with pytest.raises(UsageError, match="no document"):
        session.ask(QUESTION)
    session.read(TEXT)
    with pytest.raises(UsageError, match="empty"):
        session.ask("  \n")
    with pytest.raises(UsageError, match="must be UTF-8"):
        session.ask("caf\udce9?")
    for wrong in ({"temperature": -1.0}, {"temperature": float("nan")}, {"top_p": 0.0}):
        with pytest.raises(UsageError, match="must be"):
            session.ask(QUESTION, **{"temperature": 1.0, **wrong})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="max_new_tokens must be"):
        session.ask(QUESTION, max_new_tokens=0)


def test_a_text_cannot_end_the_turn(loaded: Any) -> None:
    """A document that spells out the template's marks stays a document."""
    prompt = PromptEncoder(loaded.tokenizer, load_preset("tiny-random").prompt)
    end = loaded.tokenizer.convert_tokens_to_ids("<|im_end|>")
    clean, spelled = prompt.encode_document("a b"), prompt.encode_document("a <|im_end|> b")
    assert spelled.count(end) == clean.count(end)
    assert prompt.encode_question("<|im_end|>?").count(end) == prompt.encode_question("?").count(
        end
    )


def test_characters_are_shown_whole(loaded: Any) -> None:
    """é is two byte tokens: nothing is shown until both are there."""
    shown: list[str] = []
    streamer = AnswerStreamer(loaded.tokenizer, shown.append)
    streamer.put(torch.tensor([0]))
    for token in loaded.tokenizer("né!", add_special_tokens=False)["input_ids"]:
        streamer.put(torch.tensor([token]))
    streamer.end()
    assert shown == ["n", "é", "!"]


def test_models_that_can_think_first_are_told_not_to(loaded: Any) -> None:
    """As Qwen3's template has it; else an answer would begin with its thoughts."""
    tokenizer = copy.deepcopy(loaded.tokenizer)
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['content'] }}{% endfor %}\n"
        "{% if enable_thinking is defined and not enable_thinking %}"
        "<think>\n\n</think>\n{% endif %}"
    )
    tokens = PromptEncoder(tokenizer, load_preset("tiny-random").prompt)
    assert tokenizer.decode(tokens.encode_question("Who?")).endswith("<think>\n\n</think>\n")


def test_templates_that_take_lists_of_parts_get_lists(loaded: Any) -> None:
    """Templates of models that also see images; of a text they show nothing, and raise nothing."""
    tokenizer = copy.deepcopy(loaded.tokenizer)
    tokenizer.chat_template = (
        "{% for m in messages %}<{{ m['role'] }}>{% for part in m['content'] %}"
        "{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endfor %}"
    )
    prompt = Prompt(before="Read.\n", after="\n{question}", system="Be brief.")
    tokens = PromptEncoder(tokenizer, prompt)
    ids = [*tokens.encode_document("The text."), *tokens.encode_question("Who?")]
    assert tokenizer.decode(ids) == "<system>Be brief.<user>Read.\nThe text.\nWho?"


def without_template(loaded: Any, first: str = "") -> Any:
    """A tokenizer as base models have it; `first` is put before every text by its own rule."""
    tokenizer = copy.deepcopy(loaded.tokenizer)
    tokenizer.chat_template = None
    if first:
        tokenizer.bos_token = first
        begins = processors.TemplateProcessing(
            single=f"{first} $A", special_tokens=[(first, tokenizer.bos_token_id)]
        )
        tokenizer.backend_tokenizer.post_processor = begins
    return tokenizer


def test_without_a_template_a_foreign_prompt_gets_no_line_break(loaded: Any) -> None:
    tokenizer = without_template(loaded)
    for prime in ("", " It is"):
        tokens = PromptEncoder(tokenizer, Prompt(before="", after="{question}"))
        ids = [*tokens.encode_document("Text."), *tokens.encode_question(" Who?", prime)]
        assert tokenizer.decode(ids) == f"Text. Who?{prime}"
    own = PromptEncoder(tokenizer, Prompt(before="", after="\n\n{question}"))
    assert (
        own.render_question("Who?") == tokenizer.decode(own.encode_question("Who?")) == "\n\nWho?\n"
    )


@pytest.mark.parametrize("chat", [True, False])
def test_a_text_begins_as_the_tokenizer_begins_it(loaded: Any, chat: bool) -> None:
    """Llama 3's puts a token first and says that it does not (`add_bos_token`)."""
    first = "<|im_start|>"
    tokenizer = without_template(loaded, first)
    prompt = Prompt(before="ab", after="{question}", chat=chat)
    start = PromptEncoder(tokenizer, prompt).encode_prompt_start()
    assert start == tokenizer("ab")["input_ids"]
    assert start[0] == tokenizer.convert_tokens_to_ids(first)
    plain = without_template(loaded)
    assert PromptEncoder(plain, prompt).encode_prompt_start() == plain("ab")["input_ids"]


def test_offsets_are_those_of_the_documents_tokens(session: Session) -> None:
    text = "Zwölf Käuze — und <|im_end|> sonst nichts.\n\nNo more."
    ids, spans = session.prompt.encode_document(text), session.prompt.find_token_offsets(text)
    assert len(ids) == len(session.prompt.encode_prompt_start()) + len(spans)
    assert spans[0][0] == 0
    assert spans[-1][1] == len(text)
    assert all(low <= high for low, high in spans)


TWICE = ["selector={name: consensus, rounds: 2, passage: 16}", "position.name=contiguous"]
TWICE += ["score={name: vote, contrast: true}", "window.ending=0", "window.chunk=32"]


def test_a_question_read_twice_leaves_no_trace(loaded: Any) -> None:
    """In the second reading and in the answer every layer sees what all agreed on in the first."""
    with Session(loaded.model, loaded.tokenizer, load_preset("tiny-random", TWICE)) as session:
        session.read(TEXT)
        length, seen = session.document_tokens, list[Any]()
        session.ask = partial(Session.ask, session, trace=seen.append)
        first = session.ask(QUESTION, max_new_tokens=3)
        del session.ask
        assert session.cache.get_seq_length() == length
        layers = len(loaded.model.model.layers)
        steps = [one for one in seen if not one.decoding]
        heard, real = steps[:layers], steps[layers:]
        assert {(one.start, one.stop) for one in heard} == {(length, real[-1].stop)}, "in one piece"
        assert len(real) > layers
        assert len(real) % layers == 0
        agreed = [one.far.tolist() for one in real]
        agreed += [one.far.tolist() for one in seen if one.decoding]
        assert all(far == agreed[0] for far in agreed)
        assert len(agreed[0]) == 4 + 64
        assert session.ask(QUESTION, max_new_tokens=3).text == first.text


@pytest.mark.parametrize("times", [1, 8])
def test_the_first_reading_ends_with_the_last_layer_that_votes(
    loaded: Any, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """What is agreed on is what reading to the end would give, however long the question is."""
    chosen = load_preset("tiny-random", [*TWICE, "score.heads=[[0,1],[0,3]]"])
    question = QUESTION * times
    found = []
    for whole in (False, True):
        if whole:
            monkeypatch.setattr("esa_cli.methods.voting.VoteScore.last_layer", None)
        with Session(loaded.model, loaded.tokenizer, chosen) as session:
            session.read(TEXT)
            seen: list[Any] = []
            session.ask = partial(Session.ask, session, trace=seen.append)
            answer = session.ask(question, max_new_tokens=3)
            asked = [(one.layer, one.start) for one in seen if not one.decoding]
            found.append((answer.text, asked, [one.far.tolist() for one in seen[-3:]]))
            assert session.cache.get_seq_length() == session.document_tokens
    (text, short, far), (whole_text, long, whole_far) = found
    assert (text, far) == (whole_text, whole_far)
    assert len(far[0]) > 4
    begins = min(start for _, start in long)
    once = long[2:]
    assert long[:2] == [(0, begins), (1, begins)], "heard in one piece, by both layers"
    assert len({start for _, start in once}) > (1 if times == 1 else 5)
    # Layer 1 is not reached, and in layer 0 what is heard is selected for and not attended.
    assert short == once


def test_an_answer_that_ends_by_itself_is_not_cut(loaded: Any) -> None:
    with Session(loaded.model, loaded.tokenizer, load_preset("tiny-random")) as session:
        session.read(TEXT)
        config = loaded.model.generation_config
        ends = config.eos_token_id
        assert session.ask(QUESTION, max_new_tokens=2).cut
        seen: list[int] = []
        try:
            tokens = session.ask(QUESTION, max_new_tokens=2, on_text=seen.append).answer_tokens
            assert tokens == 2
            config.eos_token_id = list(range(loaded.model.config.vocab_size))
            answer = session.ask(QUESTION, max_new_tokens=1)
            assert (answer.answer_tokens, answer.cut) == (1, False)
        finally:
            config.eos_token_id = ends


def test_what_is_in_view_of_a_question_counts_against_the_window(loaded: Any) -> None:
    ending = load_preset("tiny-random", ["window.ending=250"])
    with Session(loaded.model, loaded.tokenizer, ending) as session:
        session.read(TEXT)
        session.ask("When?" * 10, max_new_tokens=2)
        with pytest.raises(LengthError, match="beside the selected tokens"):
            session.ask("When?" * 60, max_new_tokens=2)
    plain = load_preset("tiny-random", ["window.dense=400"])
    with Session(loaded.model, loaded.tokenizer, plain) as session:
        session.read(TEXT[:300])
        session.ask("When?", max_new_tokens=2)
        with pytest.raises(LengthError, match="beside the whole document"):
            session.ask("When?", max_new_tokens=200)


def test_the_layers_are_told_which_words_are_the_questions_own(session: Session) -> None:
    ids = session.prompt.encode_question(QUESTION)
    low, high = session.prompt.find_question_tokens(QUESTION)
    assert session.tokenizer.decode(ids[low:high]).strip() == QUESTION
    assert 0 < low < high < len(ids)
    session.read(TEXT)
    bounds = []
    session.ask(
        QUESTION, max_new_tokens=2, trace=lambda _: bounds.append(session.cache.query.question)
    )
    length = session.document_tokens
    assert set(bounds) == {(length + low, length + high)}


@pytest.mark.parametrize("ending", [0, 7])
def test_the_question_stays_in_view_and_the_documents_end_does_not(
    loaded: Any, ending: int
) -> None:
    chosen = load_preset("tiny-random", [f"window.ending={ending}"])
    with Session(loaded.model, loaded.tokenizer, chosen) as session:
        session.read(TEXT)
        seen: list[Any] = []
        session.ask = partial(Session.ask, session, trace=seen.append)
        session.ask(QUESTION * 8, max_new_tokens=4)
        length = session.document_tokens
        assert len({one.start for one in seen}) > 4
        assert all(one.start - one.local == length - ending for one in seen)


AGREED = [
    "selector={name: consensus, passage: 1}", "score.name=vote",
    "window.dense=0", "window.selected=16", "window.local=8", "window.initial=2",
    "prompt={before: '', after: '{question}', chat: false, system: null}",
]  # fmt: skip


def test_a_question_of_one_token_selects_for_itself(loaded: Any) -> None:
    """It came alone in its call, as an answer's tokens do, and took the document's agreement."""
    seen: list[dict[tuple[int, int], list[int]]] = []
    settings = load_preset("tiny-random", [*AGREED, "reading=select"])
    with Session(loaded.model, loaded.tokenizer, settings) as session:
        session.read(TEXT)
        for _ in range(2):
            far: dict[tuple[int, int], list[int]] = {}
            answer = session.ask(
                "q",
                max_new_tokens=4,
                trace=lambda one, far=far: far.setdefault((one.layer, one.start), one.far.tolist()),  # type: ignore[misc]
            )
            assert answer.question_tokens == 1
            seen.append({at: rows for at, rows in far.items() if at[1] == session.document_tokens})
    assert len(seen[0]) == 2
    assert seen[0] == seen[1]


def test_the_last_token_of_a_document_is_no_answer(loaded: Any, monkeypatch: Any) -> None:
    """Read alone, because FEED left it over, it is read as in any other piece."""
    settings = load_preset("tiny-random", [*AGREED, "reading=select", "window.chunk=1"])
    rows = []
    for feed in (64, 50):
        monkeypatch.setattr("esa_cli.qa.answering.session.FEED", feed)
        with Session(loaded.model, loaded.tokenizer, settings) as session:
            ids = session.prompt.encode_document(TEXT)[:65]
            session.plan_prefill(ids)
            session.resume()
            rows.append(session.cache.get_layer_kv_cache(1).store.span(0, 65)[0])
    torch.testing.assert_close(*rows)


def test_maps_from_a_file_and_what_was_read_without_them(loaded: Any, tmp_path: Path) -> None:
    """A reading that goes on makes its reduced keys when they are asked for; one that is held has
    no room for them, and was scored by whole keys, which is another method."""
    maps = [Linear(torch.randn(32, 2), torch.randn(32, 2)) for _ in range(2)]
    save_learned_projections(tmp_path / "maps.safetensors", maps)
    learned = f"compressor={{name: learned, file: {tmp_path / 'maps.safetensors'}}}"
    without, reduced = (
        load_preset("tiny-random", [learned, "reading=local", f"score.name={score}"])
        for score in ("vote", "sum")
    )
    with Session(loaded.model, loaded.tokenizer, reduced) as session:
        session.read(TEXT)
        want = session.ask(QUESTION).text
        session.open([session.prefilled_document()])
        assert session.ask(QUESTION).text == want
    with Session(loaded.model, loaded.tokenizer, without) as session:
        session.read(TEXT)
        held = session.prefilled_document()
        session.use_preset(reduced)
        assert session.ask(QUESTION).text == want
        with pytest.raises(PresetError, match="with reduced keys"):
            session.open([held])
        session.use_preset(without)
        session.open([held])
        with pytest.raises(PresetError, match="with reduced keys"):
            session.use_preset(reduced)


OTHER = "A grey boat lies at the pier, and nobody knows whose it is. " * 25


def test_an_opened_document_answers_as_when_it_was_read(session: Session) -> None:
    with pytest.raises(UsageError, match="no document"):
        session.open([])
    session.read(TEXT)
    answer, held = session.ask(QUESTION).text, session.prefilled_document()
    session.read(OTHER)
    session.open([held])
    assert session.ask(QUESTION).text == answer
    assert session.ask(QUESTION).text == answer
    assert len(held.stores[0]) == len(held.ids)


def test_two_documents_are_asked_together(session: Session) -> None:
    helds = []
    for text in (TEXT, OTHER):
        session.read(text)
        helds.append(session.prefilled_document())
    session.open(helds)
    head = len(session.prompt.encode_prompt_start())
    assert session.document_tokens == sum(len(held.ids) for held in helds) - head
    assert session.ask(QUESTION).text == session.ask(QUESTION).text
    seen: set[int] = set()
    session.ask(QUESTION, trace=lambda chunk: seen.update(chunk.far.tolist()))
    ranges = locate_document_texts(helds)
    assert all(any(at in rows for at in seen) for rows in ranges)
