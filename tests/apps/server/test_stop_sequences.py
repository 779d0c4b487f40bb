"""Answers end before the first stop sequence, however the text is cut into pieces."""

from __future__ import annotations

from fake_asker import FakeAsker
from hypothesis import example, given
from hypothesis import strategies as st
from live_server import LiveServer

from esa_cli.apps.server.wire import StoppedText
from esa_cli.qa.answering.reply import CheckedSentence, Quotation, Reply

TEXTS = st.text(alphabet="abc", max_size=30)


@given(TEXTS, st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3), st.data())
@example("aabaac", ["aac"], None)
def test_the_same_text_in_pieces_and_whole(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    ends = [at for at in range(len(text)) if any(text.startswith(one, at) for one in stops)]
    expected = text[: min(ends, default=len(text))]
    sent = list[str]()
    stopped, at = StoppedText(stops, sent.append), 0
    while at < len(text):
        step = 1 if data is None else data.draw(st.integers(1, 5))
        stopped.add_piece(text[at : at + step])
        assert expected.startswith("".join(sent))
        at += step
    assert stopped.finish_reply(Reply(text)).text == expected
    assert "".join(sent) == expected


def test_what_belongs_to_the_rest_is_left_out() -> None:
    sentences = (CheckedSentence(0, 4, True, 1), CheckedSentence(5, 9, True, 1))
    reply = Reply("One. Two.", cut=True, quotation=Quotation("a", 0, 9), sentences=sentences)
    found = StoppedText([" "], lambda piece: None).finish_reply(reply)
    assert (found.text, found.cut, found.quotation) == ("One.", False, None)
    assert found.sentences == sentences[:1]
    assert StoppedText(["x"], lambda piece: None).finish_reply(reply) == reply


def test_requests_with_stop_sequences(live: LiveServer, asker: FakeAsker) -> None:
    asker.answers["one"] = "It is nine. Observation: nothing"
    for stop in ("Observation:", ["zzz", "Observation:"]):
        choice = live.ask("one", stop=stop).choices[0]
        assert (choice.message.content, choice.finish_reason) == ("It is nine. ", "stop")
        pieces = [one.choices[0] for one in live.ask("one", stop=stop, stream=True)]
        assert "".join(one.delta.content or "" for one in pieces) == "It is nine. "
        assert pieces[-1].finish_reason == "stop"
    assert live.ask("one", stop="").choices[0].message.content == asker.answers["one"]
