"""Words of a text as stems, and where they are; texts that are no Unicode."""

from __future__ import annotations

import re
import unicodedata

import bm25s
import properties  # noqa: F401
import pytest
import snowballstemmer
import torch
from hypothesis import given
from hypothesis import strategies as st

from esa_cli.system.text import (
    ENGLISH,
    K1,
    B,
    Bm25Index,
    detect_language,
    find_content_words,
    find_question_words,
    has_lone_surrogate,
    load_function_words,
    locate_content_words,
    replace_lone_surrogates,
)

# Own sentences; of each, words in another form that it has.
TEXTS = [
    ("english", "Captain Ahab’s ship was gone, and d’Artagnan met Dólokhov and Brontë in l’Italie.",
     "Ahab Ahab's ships Artagnan d'Artagnan Dolokhov DO\u0301LOKHOV Bronte Italie"),
    ("german", "Die Häuser am Fluss wurden verkauft, und der Müller trug die Löffel "
     "über die Straße.", "Haus Strasse Muller Löffeln"),
    ("french", "L'Italie était loin. Napoléon fut enterré dans l’île d'Elbe, et les chevaux de "
     "d'Artagnan étaient fatigués.", "Italie ile Elbe cheval Artagnan enterrée Napoleon fatiguée"),
    ("italian", "La città dell'Italia era bella, e un'isola del mare non è vicina alle navi.",
     "Italia isola nave citta"),
    ("spanish", "El capitán García perdió la información sobre las canciones de María.",
     "Garcia perder informaciones canción Maria capitan"),
    ("russian", "Он спрятал серебряные ложки в сундуке, и До́лохов не знал об этом.",
     "серебряная ложка Долохов сундук"),
    ("turkish", "Ankara'da bir ev için kitapları aldı ve İstanbul'a gitti, IŞIK çok güzel.",
     "Ankara kitap Istanbul ışık evler"),
    ("swedish", "Båten låg i hamnen och det var en kall natt för skeppet.", "båtar hamn bat"),
    ("greek", "Το πλοίο έφυγε από την Αθήνα και δεν ήταν στο λιμάνι.", "πλοία ΑΘΗΝΑ λιμάνια"),
    ("hindi", "लड़के ने किताबें मेज पर रखीं और वह घर में था।", "किताब लड़का"),
    ("arabic", "وجد الرجل كِتَابًا قديمًا في المدينة ثم ذهب إلى البحر.", "كتاب مدينة بحر"),
    ("persian", "او کتاب\u200cهای قدیمی را به شهر برد و از آن خانه رفت.", "کتاب\u200cهای شهر"),
    (ENGLISH, "ชาวประมงเก็บปลาไว้ในบ้านริมน้ำ", "ปลา บ้าน น้ำ"),
    (ENGLISH, "船長把銀勺藏在舊箱子裡。", "船長 銀勺 箱子"),
    (ENGLISH, "সমুদ্রের ধারে একটি পুরানো বাড়ি", "বাড়ি পুরানো"),
]  # fmt: skip


@pytest.mark.parametrize(("language", "text", "asked"), TEXTS)
def test_other_forms_of_a_word_are_the_word(language: str, text: str, asked: str) -> None:
    assert detect_language(text) == language
    for form in (text, unicodedata.normalize("NFD", text), text.replace("’", "'")):
        stems = set(find_content_words(form, language))
        for word in asked.split():
            found = find_question_words(word, [language])
            assert found, word
            assert all(stems.intersection(some) for some in found), word


def test_a_language_is_told_by_the_text_and_not_by_what_surrounds_it() -> None:
    german, english = TEXTS[1][1], TEXTS[0][1]
    assert (
        detect_language("")
        == detect_language("12 34\nHarp;Loom\n")
        == detect_language(english)
        == ENGLISH
    )
    assert detect_language(english * 20 + german * 100 + english * 20) == "german"
    assert detect_language("No. 5, soup a la carte") == ENGLISH
    assert detect_language("Це було в місті, і він не знав, що це за книга.") == "ukrainian"


def test_every_language_leaves_out_its_words() -> None:
    for language, words in load_function_words().items():
        assert len(words) > 10
        assert find_content_words(" ".join(words), language) == [], language


PIECES = [
    "harp", "looms", "Ahab’s", "ʼtis", "Do\u0301lokhov", "Dólokhov", "हिन्दी", "كِتَاب", "น้ำแข็ง",
    "鲸鱼",    "か\u3099", "ﬁsh", "２０", "½", "²", "İz", "ß", "\U0001d7d8",
    "ﷺ", "lo\u00adom", "\u0301", "\ud800",
    "_", "'", "’", " ", ", ", "\n", "x", "d'",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=12), st.sampled_from([ENGLISH, "hindi", "latin"]))
def test_each_word_is_what_its_characters_give_alone(pieces: list[str], language: str) -> None:
    text = "".join(pieces)
    last, covered = 0, set[int]()
    for start, end, stem in locate_content_words(text, language):
        assert last <= start < end <= len(text)
        assert stem in find_content_words(text[start:end], language), (start, end)
        covered.update(range(start, end))
        last = start
    # A plain loop: what is a letter belongs to a word, but for what is elided.
    for at, character in enumerate(text):
        if character.isalnum() and text[at : at + 2] not in ("d'", "d’") and character not in "ʼ":
            assert at in covered, (at, character)
    assert find_content_words(text, language) == [
        stem for *_, stem in locate_content_words(text, language)
    ]


@given(st.text(st.characters(max_codepoint=127), max_size=60))
def test_english_words_in_ascii_are_those_of_snowball(text: str) -> None:
    stem = snowballstemmer.stemmer("english").stemWord
    words = re.findall("[a-z0-9]+", text.lower())
    wanted = [stem(word) for word in words if word not in load_function_words()[ENGLISH]]
    assert find_content_words(text.replace("'", " ")) == wanted


@pytest.mark.parametrize("words", [3, 40, 5000])
def test_bm25_is_that_of_bm25s_bit_for_bit(words: int) -> None:
    assert Bm25Index([], 0).compute_scores([]).shape == (0,)
    assert Bm25Index([[0], []], 1).compute_scores([]).tolist() == [0, 0]
    torch.manual_seed(words)
    sizes = torch.randint(0, 90, (200,)).tolist()
    texts = [(words * torch.rand(size) ** 3).long().tolist() for size in sizes]
    library = bm25s.BM25(k1=K1, b=B)
    vocabulary = {str(i): i for i in range(words)}
    library.index(bm25s.tokenization.Tokenized(ids=texts, vocab=vocabulary), show_progress=False)
    ours = Bm25Index(texts, words)
    for asked in ([0], [words - 1, 1, 1], list(range(0, words, 1 + words // 30))):
        want = torch.from_numpy(library.get_scores_from_ids(asked)).float()
        assert torch.equal(ours.compute_scores(asked), want)


def test_lone_surrogates_are_replaced_wherever_they_are() -> None:
    found = replace_lone_surrogates({"a": ["x\udce9y", {"b": "\ud800"}], "c": 1, "d": None})
    assert found == {"a": ["x\ufffdy", {"b": "\ufffd"}], "c": 1, "d": None}
    assert replace_lone_surrogates("ü😀") == "ü😀"
    assert has_lone_surrogate("a\udfff")
    assert not has_lone_surrogate("\ud7ff\ue000")
