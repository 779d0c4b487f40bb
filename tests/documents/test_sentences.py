"""Sentences and lines around a character: whole, apart from each other, never too long."""

from __future__ import annotations

import random
from bisect import bisect_right
from itertools import pairwise

import pytest

from esa_cli.documents.document import LONGEST, find_sentence_ends, strip_span
from esa_cli.qa.finding.words import find_sentence_spans


def pieces(text: str) -> list[str]:
    """Every piece, in order; each character but white space is in one."""
    spans = find_sentence_spans(text)
    outside = [set(range(len(text))).difference(*(range(*span) for span in spans))]
    assert not any(text[at].strip() for at in outside[0])
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    return [text[start:end] for start, end in spans]


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("One goes. Two stay! Three?", ["One goes.", "Two stay!", "Three?"]),
        ('"Stop!" he said. She did.', ['"Stop!" he said.', "She did."]),
        ("Dr. Ada B. Cole paid 4.50. Then no.", ["Dr. Ada B. Cole paid 4.50.", "Then no."]),
        ("# Head\n\nA line\nand another", ["# Head", "A line", "and another"]),
        ("name,age\nAda,7\n\n\nBob,8\n", ["name,age", "Ada,7", "Bob,8"]),
        ("  \n\n One.  \n", ["One."]),
        ("他走了。她留下！", ["他走了。", "她留下！"]),
        ("Wait... He (the one\tI mean.) left.", ["Wait...", "He (the one\tI mean.) left."]),
        ("Er kam. „Ja.“ Sie ging.", ["Er kam.", "„Ja.“", "Sie ging."]),
        ("वह गया। क्या वह आया? हाँ॥ ठीक", ["वह गया।", "क्या वह आया?", "हाँ॥", "ठीक"]),
        ("هل جاء؟ نعم! ذهب.", ["هل جاء؟", "نعم!", "ذهب."]),
        ("« Qui ? » dit-il. « Moi ! » Fin.", ["« Qui ? » dit-il.", "« Moi ! »", "Fin."]),
        ("Ja. »Gut.« »Nein!« Er ging.", ["Ja.", "»Gut.«", "»Nein!«", "Er ging."]),
        ("¿Vienes? —dijo él. —¡No! Se fue.", ["¿Vienes? —dijo él.", "—¡No!", "Se fue."]),
        ("«Где он?» — спросила она. Нет.", ["«Где он?» — спросила она.", "Нет."]),
        ("Πού είναι; Εδώ. Γιατί; ρώτησε.", ["Πού είναι;", "Εδώ.", "Γιατί; ρώτησε."]),
        ("他说：“好！”（见上文。）走。", ["他说：“好！”", "（见上文。）", "走。"]),
        ("「行こう。」と言った。『何？』", ["「行こう。」と言った。", "『何？』"]),
        ("３．５だ．はい｡いや。", ["３．５だ．", "はい｡", "いや。"]),
        ("डॉ. शर्मा गए। وصل د. أحمد.", ["डॉ. शर्मा गए।", "وصل د. أحمد."]),
        ("သူလာသည်။သူသွားသည်။", ["သူလာသည်။", "သူသွားသည်။"]),
        (" \n\n\n ", []),
        *(
            (f"{line}\n{line}\n", [line, line])
            for line in (
                "- a thing that is written down in a list of many words",
                "| one cell with some words | another cell with some | x |",
            )
        ),
    ],
)  # fmt: skip
def test_pieces(text: str, want: list[str]) -> None:
    assert pieces(text) == want


@pytest.mark.parametrize(
    "sentence",
    [
        "It stands in No. 5, p. 12 and pp. 3-5 of vol. 3 (see Fig. 2 and Art. 5).",
        "Das Haus wurde am 3. Mai 1871, nicht am 3. 5. 1872 oder im 19. Jahrhundert gebaut.",
        "Bis zum 12. Juni galt z. B. Absatz 2, d. h. Nr. 5 und Abb. 3, ggf. Kap. 4.",
        "Mme. Bovary vit M. Dupont et Mlle. Roche à la p. 12 du vol. 3.",
        "А. С. Пушкин жил на ул. Садовой, см. стр. 5.",
        "Hr. Weber und Fr. Klein, Prof. Dr. med., wohnen Hauptstr. 5, wie im 2. Weltkrieg.",
        "César mourut en 44 av. J.-C. à Rome (voir éd. Hachette, al. 2, p. ex. Livre II).",
        "Dña. Ana, D. Luis, el Ing. Soto y Ud. van a EE. UU. en el s. XIX, apdo. 2, núm. 5.",
        "L'Ing. Galli e la Sig.ra Bianchi, cfr. sec. XV e pag. 12, vennero nel 44 a.C. a Roma.",
        "Dhr. Jansen en mevr. De Vries, blz. 12, bijv. Utrecht.",
        "Prof. Nowak mieszka przy ul. Długiej, np. Warszawa, tj. Polska.",
    ],
)
def test_dates_and_abbreviations_end_no_sentence(sentence: str) -> None:
    assert pieces(f"{sentence} Then no. {sentence}") == [sentence, "Then no.", sentence]


@pytest.mark.parametrize(
    "text",
    [
        "It was in 1912. The ship sank.",
        "There were 31. May came.",
        "She said no. He went at 5 p.m. The house was closed.",
        "Es waren 40. Dann kam er usw. Niemand blieb.",
    ],
)
def test_numbers_and_words_that_are_no_abbreviations_end_sentences(text: str) -> None:
    ends = [at for at in range(len(text)) if text[at - 1 : at + 1] == ". "] + [len(text)]
    starts = [0, *(end + 1 for end in ends)]
    assert pieces(text) == [text[a:b] for a, b in zip(starts, ends, strict=False)]


def test_prose_that_was_broken_to_a_width_is_put_together() -> None:
    text = (
        "It was a long way to the lighthouse, and nobody had\n"
        "thought of bringing a lamp. The keeper was already in bed and\n"
        "Bottle, his heron, stood guard.\n"
    )
    assert pieces(text) == [
        "It was a long way to the lighthouse, and nobody had\nthought of bringing a lamp.",
        "The keeper was already in bed and\nBottle, his heron, stood guard.",
    ]


def test_no_piece_is_too_long() -> None:
    for text in ("word " * 1000, "x" * 3000, ("a line of a log, seen at noon\n") * 100):
        found = pieces(text)
        assert max(map(len, found)) <= LONGEST
        assert "".join("".join(found).split()) == "".join(text.split())


def plain_around(text: str, at: int) -> tuple[int, int]:
    """Looks back for the blank line, and cuts the paragraph anew."""
    first = text.rfind("\n\n", 0, at) + 2 if "\n\n" in text[:at] else 0
    last = text.find("\n\n", first)
    edges = [first, *find_sentence_ends(text, first, len(text) if last < 0 else last)]
    place = min(max(bisect_right(edges, at), 1), len(edges) - 1)
    return strip_span(text, edges[place - 1], edges[place])


def test_every_character_of_random_texts_is_in_the_sentence_a_plain_search_finds() -> None:
    dice = random.Random(0)
    for _ in range(200):
        text = "".join(
            dice.choices(["\n", "\n\n", "A b. ", "c d ", ".", "E"], k=dice.randint(0, 30))
        )
        wanted = {plain_around(text, at) for at, sign in enumerate(text) if not sign.isspace()}
        assert find_sentence_spans(text) == sorted(wanted), text
