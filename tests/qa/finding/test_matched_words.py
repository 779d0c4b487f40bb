"""Words of a question in a passage: by stems, as whole words, in scripts without spaces."""

from __future__ import annotations

import pytest

from esa_cli.qa.finding.words import matched_words


@pytest.mark.parametrize(
    ("text", "question", "words"),
    [
        ("He opened the gates; a gateway.", "When do the gates open?", ["opened", "gates"]),
        ("What is the man's name?", "Who is the man?", ["man's"]),
        ("Nothing of it.", "who is it", []),
        ("Ahab AHAB ahab", "ahab", ["Ahab", "AHAB", "ahab"]),
        ("図書館は醸造所に", "図書館", ["図書", "書館"]),
        ("x図書 and abc図", "abc図書", ["図書", "abc"]),
        ("李's gate, 李'图", "李's and 李'图", ["李", "s", "李", "图"]),
        ("Ahab’s ship; AHAB‘S", "Ahab's", ["Ahab’s", "AHAB‘S"]),
        ("Do\u0301lokhov and l’Italie", "Dolokhov in Italie", ["Do\u0301lokhov", "Italie"]),
        ("Er sah die Häuser, aber nicht das Haus.", "Haus", ["Häuser", "Haus"]),
        ("", "gate", []),
    ],
)
def test_the_words_of_the_question_are_found(text: str, question: str, words: list[str]) -> None:
    assert [text[start:end] for start, end in matched_words(text, question)] == words
