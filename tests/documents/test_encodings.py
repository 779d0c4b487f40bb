"""Text in legacy encodings: read as it was written, or refused, but never as other text."""

from __future__ import annotations

from contextlib import suppress

import pytest

from esa_cli.documents.readers.plain_text import decode_text
from esa_cli.errors import DocumentError

TEXTS = {
    "de": "Die Tür war offen, und über der Straße hörte man Gelächter; später fror es [÷ 3]. ",
    "fr": "Élise était là, près de la fenêtre; où êtes-vous, monsieur? Voilà la clé. ",
    "es": "--¿Dónde está el niño?--Mañana iré a la ciudad, señora; ¡qué alegría! ¿de veras? ",
    "ru": "Утром они пошли к реке, потому что вода была тёплая и рыба клевала хорошо. ",
    "uk": "Вранці вони пішли до річки, бо вода була тепла, і риба їла добре її хліб. ",
    "pl": "Rano poszli nad rzekę, bo woda była ciepła i ryby dobrze brały; żółw też. ",
    "tr": "Sabah nehre gittiler, çünkü su ılıktı ve balıklar iyi yiyordu; güneş doğdu. ",
    "hu": "Reggel elmentek a folyóhoz, mert a víz meleg volt, és az őz is ott ivott; fűz. ",
    "el": "Το πρωί πήγαν στο ποτάμι, γιατί το νερό ήταν ζεστό και τα ψάρια τσιμπούσαν. ",
    "zh": "早上他们去了河边，因为水是暖的，鱼也很多。他说这是他来过的最好的地方，人不多。",
    "tw": "早上他們去了河邊，因為水是暖的，魚也很多。他說這是他來過的最好的地方，人不多。",
    "ja": "朝になって、みんなは川に行った。水が温かいので、魚もたくさんいるのである。",
    "ko": "아침에 그들은 강가에 갔다. 물이 따뜻하고 물고기가 많은 곳이다. 날씨는 좋았다. ",
}
ENCODINGS = (
    "cp1250", "cp1251", "cp1252", "cp1253", "cp1254", "iso8859_2", "iso8859_5", "koi8_r", "koi8_u",
    "cp866", "mac_cyrillic", "mac_roman", "gb18030", "big5", "cp932", "euc_jp", "cp949",
)  # fmt: skip
KNOWN = {
    "de": ["cp1252"], "fr": ["cp1252"], "es": ["cp1252"], "ru": ["cp1251", "koi8_r"],
    "uk": ["cp1251", "koi8_u"], "zh": ["gb18030"], "tw": ["big5"], "ja": ["cp932", "euc_jp"],
    "ko": ["cp949"],
}  # fmt: skip


@pytest.mark.parametrize("language", TEXTS)
def test_legacy_text_is_read_as_it_was_written_or_refused(language: str) -> None:
    text = TEXTS[language] * 150
    for encoding in ENCODINGS:
        with suppress(UnicodeEncodeError, DocumentError):
            decoded, found = decode_text(text.encode(encoding), "a.txt")
            assert decoded == text, (encoding, found)


@pytest.mark.parametrize("language", KNOWN)
def test_frequent_encodings_are_recognised(language: str) -> None:
    text = TEXTS[language] * 20
    if language == "fr":
        text = text * 10 + "nº 5"
    for encoding in KNOWN[language]:
        assert decode_text(text.encode(encoding), "a.txt")[0] == text


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_mark(encoding: str) -> None:
    text = "The gate opens at nine, and the café at ten. "
    assert decode_text(text.encode(encoding), "a.txt")[0] == text
