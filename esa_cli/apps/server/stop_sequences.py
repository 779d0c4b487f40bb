"""Ends an answer before the first of a client's stop sequences, also while the answer streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from esa_cli.qa.answering.reply import Reply


class StoppedText:
    """The text of an answer up to the first stop sequence; sends pieces of the text on.

    A piece that may be the beginning of a stop sequence waits until the next piece decides.

    Args:
        sequences: stop sequences, none of them empty; none at all: the whole answer is sent."""

    def __init__(self, sequences: Sequence[str], send_text: Callable[[str], None]) -> None:
        self._sequences, self._send = sequences, send_text
        self._waiting, self._has_ended = "", False

    def add_piece(self, piece: str) -> None:
        """Sends the part of the text so far that no stop sequence can begin in any more."""
        if self._has_ended:
            self._send("")  # raises if the client no longer waits
            return
        text = self._waiting + piece
        end = find_stop(text, self._sequences)
        self._has_ended = end is not None
        if end is None:
            begun = (at for at in range(len(text)) if self._can_begin(text[at:]))
            end = next(begun, len(text))
        self._waiting = text[end:]
        self._send(text[:end])

    def _can_begin(self, tail: str) -> bool:
        return any(sequence.startswith(tail) for sequence in self._sequences)

    def finish_reply(self, reply: Reply) -> Reply:
        """Sends what waits still, and returns the reply up to the first stop sequence."""
        if self._waiting and not self._has_ended:
            self._send(self._waiting)
        end = find_stop(reply.text, self._sequences)
        if end is None:
            return reply
        sentences = tuple(one for one in reply.sentences if one.end <= end)
        text = reply.text[:end]
        return replace(reply, text=text, cut=False, quotation=None, sentences=sentences)


def find_stop(text: str, sequences: Sequence[str]) -> int | None:
    """Returns where the first stop sequence begins in a text, or None if there is none."""
    return min((at for one in sequences if (at := text.find(one)) >= 0), default=None)
