"""Chapters and contents pages, in books that the tests write and whose outline they know."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

import pytest
from sample_files import docx, epub, odt, paragraph, pdf

from esa_cli.documents import readers
from esa_cli.documents.document import Document
from esa_cli.documents.outline import (
    find_contents,
    find_place,
    find_sections,
    fold,
    parse_heading,
    parse_number,
)
from esa_cli.qa.sections import find_named_sections

TITLES = ["The Gate", "A Grey Boat", "The Lantern", "Old Debts", "The Way Home"]
SENTENCE = "the boat lay at a pier while rain fell on lamps nets and slow grey geese of Ennick"
WORDS = SENTENCE.split()
NUMBERS = ["ONE", "TWO", "THREE", "FOUR", "FIVE"]
ROMAN = ["", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX"]
GERMAN = ["Erstes", "Zweites", "Drittes", "Viertes", "Fünfundzwanzigstes"]


def prose(seed: int, paragraphs: int = 4, width: int = 70) -> str:
    """Wrapped paragraphs, about 1,600 characters."""
    rng = random.Random(seed)
    out = []
    for _ in range(paragraphs):
        lines, line = [], "One day"
        for _ in range(70):
            word = rng.choice(WORDS)
            if len(line) + len(word) >= width:
                lines.append(line)
                line = word
            else:
                line += f" {word}"
        out.append("\n".join([*lines, f"{line}."]))
    return "\n\n".join(out)


def read(data: str | bytes, name: str = "book.txt") -> Document:
    data = data.encode() if isinstance(data, str) else data
    extracted = readers.extract_text(data, name)
    return Document(name, extracted.text, name, "utf-8", len(data), extracted.marks)


def book(heading: Callable[[int, str], str], contents: Sequence[str] = ()) -> str:
    """Chapters below what `heading` makes of their number and title, behind a contents page."""
    parts = ["THE BOOK OF ENNICK", "by Nobody"]
    if contents:
        parts.append("\n".join(contents))
    for number, title in enumerate(TITLES, 1):
        parts += [heading(number, title), prose(number)]
    return "\n\n\n".join(parts) + "\n"


FORMS: dict[str, tuple[Callable[[int, str], str], str]] = {
    "english": (lambda n, title: f"CHAPTER {ROMAN[n]}. {title}", "chapter"),
    "below": (lambda n, title: f"Chapter {n}\n\n{title}", "chapter"),
    "right below": (lambda n, title: f"CHAPITRE {ROMAN[n]}\n{title.upper()}", "chapter"),
    "dash": (lambda n, title: f"PART {NUMBERS[n - 1]}--{title}", "part"),
    "german": (lambda n, title: f"{GERMAN[n - 1]} Kapitel", "chapter"),
    "french": (lambda n, title: f"Chapitre {n} : {title}", "chapter"),
    "spanish": (lambda n, title: f"Capítulo {ROMAN[n]}. {title}", "chapter"),
    "chinese": (lambda n, title: f"第{'一二三四五'[n - 1]}回　{title}", "chapter"),
    "numbers": (lambda n, title: f"{n}\n\n{title}", ""),
    "roman": (lambda n, title: f"{ROMAN[n]}. {title.upper()}", ""),
    "law": (lambda n, title: f"§ {n} {title}", "paragraph"),
}


@pytest.mark.parametrize("form", FORMS)
def test_headings_of_many_languages(form: str) -> None:
    heading, kind = FORMS[form]
    document = read(book(heading))
    starts = [document.text.index(f"{heading(n, title)}\n") for n, title in enumerate(TITLES, 1)]
    found = find_sections(document)
    assert [(one.kind, one.number, one.start) for one in found] == [
        (kind, str(n), start) for n, start in enumerate(starts, 1)
    ]
    assert [one.end for one in found] == [*starts[1:], len(document.text)]
    if form != "german":
        assert [one.title.casefold() for one in found] == [one.casefold() for one in TITLES]


def test_a_sentence_right_below_a_number_is_no_title() -> None:
    articles = [f"Article {n}\nNobody owns the {word}." for n, word in enumerate(WORDS, 1)]
    assert not any(one.title for one in find_sections(read("\n\n".join(articles))))


def test_narratives_inside_periods_and_parts_without_numbers() -> None:
    """As in The Moonstone, whose contents page has the same lines, without empty ones between."""
    heads = [
        (0, "PROLOGUE"), (0, "FIRST PERIOD"), (2, "CHAPTER I"), (2, "CHAPTER II"),
        (0, "SECOND PERIOD"), (1, "FIRST NARRATIVE"), (2, "CHAPTER I"), (2, "CHAPTER II"),
        (1, "NARRATIVE THE SECOND"), (2, "CHAPTER I"), (0, "EPILOGUE"),
    ]  # fmt: skip
    sentence = "It came, as I now have to tell you, at night."  # in one chapter: not its title
    body = "\n\n".join(f"{one}.\n\n{prose(n)}" for n, (_, one) in enumerate(heads))
    body = body.replace("CHAPTER II.\n", f"CHAPTER II.\n\n{sentence}\n", 1)
    text = "\n\n".join(["THE STONE", *(one for _, one in heads), body, "***END OF THE PROJECT***"])
    license_text = f"\n\nSection 1. Terms\n\n{prose(1)}"
    found = find_sections(read(text + license_text))
    assert [(one.level, one.heading) for one in found] == [(n, f"{one}.") for n, one in heads]
    assert text[found[0].start :].startswith("PROLOGUE.")
    for at, one in enumerate(found):
        later = [other.start for other in found[at + 1 :] if other.level <= one.level]
        assert one.end == (later[0] if later else text.index("***"))


CONTENTS: dict[str, Callable[[int, str], str]] = {
    "pages": lambda n, title: f"  {n}.  {title.upper()} . . . . . . {n * 11}",
    "plain": lambda n, title: f"CHAPTER {ROMAN[n]}. {title}",
    "titles": lambda n, title: f"    {title}",
    "links": lambda n, title: f"- [{title}](#chapter-{n})",
}


@pytest.mark.parametrize("form", CONTENTS)
@pytest.mark.parametrize("titled", [True, False])
def test_a_contents_page_is_told_from_the_chapters(form: str, titled: bool) -> None:
    lines = [CONTENTS[form](n, title) for n, title in enumerate(TITLES, 1)]
    heading = FORMS["english"][0]
    text = book(heading, [*(["CONTENTS", ""] if titled else []), *lines])
    document = read(text)
    ((start, end),) = find_contents(document)
    assert start <= text.index(lines[0])
    assert "by Nobody" not in text[start:end]
    assert text[start:end].rstrip().endswith(lines[-1].strip())
    assert [one.start for one in find_sections(document)] == [
        text.rindex(heading(n, title)) for n, title in enumerate(TITLES, 1)
    ]


def test_an_index_at_the_end() -> None:
    entries = [f"{word}, {n}, {n + 4}-{n + 9}" for n, word in enumerate(sorted(WORDS), 3)]
    text = book(FORMS["english"][0]) + "\n\nINDEX.\n\n" + "\n".join(entries) + "\n"
    ((start, end),) = find_contents(read(text))
    assert text[start:end] == text[text.index("INDEX") :].rstrip("\n")


def test_a_contents_page_that_is_a_numbered_list_of_numbered_chapters() -> None:
    """As the navigation of an EPUB is, whose chapters have numbers of their own."""
    lines = [f"{n}. {ROMAN[n]}. {title}" for n, title in enumerate(TITLES, 1)]
    text = book(FORMS["roman"][0], ["Contents", "", *lines])
    ((start, end),) = find_contents(read(text))
    assert text[start:end].splitlines()[-5:] == lines


TALK = [f"“Is it the {word}?”" for word in WORDS[1:9]]


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(f"Rent {n}\nFood {n}\nLight {n}\nWater {n}\nCoal {n}\n" for n in range(40)),
        f"Contents\n\n{prose(1)}\n\n{prose(2)}\n",
        "\n\n".join("Who goes there?\nA friend.\nPass.\nOf whom?\nThe king." for _ in "123"),
        "Table\n\n" + "\n".join(f"{word}      {n}" for n, word in enumerate(WORDS)) + "\n",
        "To buy:\n\n" + "\n".join(f"{n}. Fresh {word}" for n, word in enumerate(WORDS, 1)),
        prose(5) + "\n\nChapter 2 tells why.\n\n" + prose(6),
        "\n\n".join([*TALK, *(f"{prose(n, 1)}\n\n{one}" for n, one in enumerate(TALK))]),
    ],
)  # fmt: skip
def test_what_is_no_contents_page_and_no_chapter(text: str) -> None:
    document = read(text)
    assert find_contents(document) == []
    assert [one for one in find_sections(document) if one.number != "2"] == []


def test_numbered_sections_of_a_pdf_without_bookmarks() -> None:
    numbers = ["1", "1.1", "1.2", "2", "2.1", "2.1.1", "2.2", "3"]
    heads = [f"{number} {word.title()} Rules" for number, word in zip(numbers, WORDS, strict=False)]
    contents = "Table of Contents\n" + "\n".join(
        f"{one} ........... {n}" for n, one in enumerate(heads)
    )
    pages = [contents, *(f"{n}\n{one}\n{prose(n, 2, 60)}" for n, one in enumerate(heads, 1))]
    document = read(pdf([page.replace("\n\n", "\n") for page in pages]), "rules.pdf")
    found = find_sections(document)
    assert [one.number for one in found] == numbers
    assert [document.place(one.start).page for one in found] == list(range(2, 10))
    for one in found:  # a section holds those whose numbers begin with its own
        inside = [other.number for other in found if one.start <= other.start < one.end]
        assert inside == [n for n in numbers if f"{n}.".startswith(f"{one.number}.")]


def test_sections_of_numbered_chapters_whose_pages_repeat_the_chapter() -> None:
    """Section 2.1 follows 1.2 though `2` has a word before it; a head of a page ends no section."""
    pages, headings = list[str](), list[str]()
    for chapter, name in enumerate(TITLES, 1):
        head = f"Chapter {chapter} {name}"
        first, second = (f"{chapter}.{n} {WORDS[n].title()} of {name}" for n in (1, 2))
        pages += [
            f"{head}\n{first}\n{prose(chapter)}",
            f"{head}\n{second}\n{prose(-chapter)}",
            head,
        ]
        headings += [head, first, second]
    found = find_sections(read("\n".join(pages).replace("\n\n", "\n")))
    assert [one.heading for one in found] == headings
    assert [one.end for one in found[2:-1:3]] == [one.start for one in found[3::3]]


def test_unnumbered_parts_and_appendices_around_numbered_chapters() -> None:
    """The last chapter ends where they begin; the index is not listed."""
    heads = ["Preface", "1 Boats", "1.1 Nets", "1.2 Lamps", "2 Geese", "3 Rain"]
    heads += ["Appendix A: Tools", "Appendix B: Maps", "Appendix C: Tides", "Glossary"]
    pages = [f"{one}\n{prose(n, 2)}".replace("\n\n", "\n") for n, one in enumerate(heads)]
    index = "Index\n" + "\n".join(f"{word}, {n}" for n, word in enumerate(sorted(WORDS), 2))
    document = read(pdf([*pages, index]), "course.pdf")
    found = find_sections(document)
    assert [one.heading for one in found] == [*heads, "Index"]
    assert [one.is_contents for one in found] == [False] * len(heads) + [True]
    assert {one.level for one in found if "." not in one.number} == {2}
    at = {one.heading: one for one in found}
    assert at["3 Rain"].end == at["Appendix A: Tools"].start
    assert at["Glossary"].end == at["Index"].start
    for words, heading in [
        ("appendix C", heads[8]),
        ("Anhang B", heads[7]),
        ("glossary", heads[9]),
    ]:
        assert [one.heading for one in find_named_sections(words, fold(words), found)] == [heading]


@pytest.mark.parametrize("in_capitals", [True, False])
def test_numbered_capitals_are_headings_of_short_sections(in_capitals: bool) -> None:
    names = ["Who may enter", "What to wear", "If the alarm rings"]
    lines = [f"{n}. {name.upper() if in_capitals else name}" for n, name in enumerate(names, 1)]
    text = "\n\n".join(f"{line}\n\nOnly staff may. Ask at the desk, please." for line in lines)
    found = [one.heading for one in find_sections(read(text))]
    assert found == (lines if in_capitals else [])


def test_marks_of_readers_are_chapters() -> None:
    markdown = "".join(
        f"\n{'#' * (1 + n % 2)} {title}\n\n{prose(n)}\n" for n, title in enumerate(TITLES)
    )
    found = find_sections(read(markdown, "book.md"))
    assert [(one.title, one.level) for one in found] == [
        (t, 1 + n % 2) for n, t in enumerate(TITLES)
    ]
    assert found[0].end == found[2].start
    assert found[1].end == found[2].start
    chapters = {
        f"c{n}.html": f"<h2>{title}</h2><p>{prose(n)}</p>" for n, title in enumerate(TITLES)
    }
    nav = "".join(
        f'<li><a href="c{n}.html">{n + 1}. {one}</a></li>' for n, one in enumerate(TITLES)
    )
    listed = "".join(f"<li>{one}</li>" for one in TITLES)
    pages = {"toc.html": f"<h2>Contents</h2><ol>{listed}</ol>", **chapters}
    document = read(epub(pages, nav=nav), "book.epub")
    assert [(one.number, one.title) for one in find_sections(document)] == [
        (str(n), title) for n, title in enumerate(TITLES, 1)
    ]
    ((start, end),) = find_contents(document)
    assert (start, end) == (0, document.text.index(TITLES[-1]) + len(TITLES[-1]))
    bookmarked = read(pdf([prose(1, 1), prose(2, 1)], [("The Gate", 0), ("Old Debts", 1)]), "b.pdf")
    assert [one.title for one in find_sections(bookmarked)] == ["The Gate", "Old Debts"]


def test_a_place_names_the_innermost_heading_or_the_chapter_that_the_reader_marked() -> None:
    text = f"THE BOOK\n\nBOOK ONE\n\n{book(FORMS['english'][0], TITLES)}"
    document, marked = read(text), read(f"# Boats\n\n{text}", "a.md")
    heads = [text.rindex(FORMS["english"][0](n, title)) for n, title in enumerate(TITLES, 1)]
    for number, (start, end) in enumerate(zip(heads, [*heads[1:], len(text)], strict=True), 1):
        for at in (start, (start + end) // 2, end - 1):
            place = find_place(document, at)
            assert place.chapter == FORMS["english"][0](number, TITLES[number - 1])
            assert place._replace(chapter=None) == document.place(at)
            assert find_place(marked, at + 9).chapter == "Boats"
    assert find_place(document, 0).chapter is None
    assert find_place(document, text.index("by Nobody")).chapter.startswith("BOOK ONE")


HEADS = [(1, "Boats"), (2, "Grey"), (3, "4.2 Nets"), (3, "Geese"), (2, "Slow"), (1, "Rain")]


def write_markdown() -> bytes:
    return "".join(f"{'#' * n} {one}\n\n{prose(n)}\n\n" for n, one in HEADS).encode()


def write_html() -> bytes:
    return "".join(f"<h{n}>{one}</h{n}><p>{prose(n)}</p>" for n, one in HEADS).encode()


def write_docx() -> bytes:
    levels = (f'<w:outlineLvl w:val="{n - 1}"/>' for n, _ in HEADS)
    return docx("".join(
        paragraph(one, properties=level) + paragraph(prose(n))
        for level, (n, one) in zip(levels, HEADS, strict=True)
    ))  # fmt: skip


def write_odt() -> bytes:
    return odt("".join(
        f'<text:h text:outline-level="{n}">{one}</text:h><text:p>{prose(n)}</text:p>'
        for n, one in HEADS
    ))  # fmt: skip


def write_epub(nav: str = "", ncx: str = "") -> bytes:
    pages = {
        f"c{at}.html": f"<h{n}>{one}</h{n}><p>{prose(n)}</p>" for at, (n, one) in enumerate(HEADS)
    }
    return epub(pages, nav=nav, ncx=ncx)


def write_contents(entry: str, end: str, inside: str = "", inside_end: str = "") -> str:
    """The table of contents of an EPUB book, with its entries inside each other."""
    out, level = "", 0
    for at, (n, one) in enumerate(HEADS):
        out += end * (at > 0) if n <= level else ""
        out += (inside_end + end) * max(0, level - n) + inside * (n > level > 0)
        out += entry.format(at=at, title=one)
        level = n
    return out + end + (inside_end + end) * (level - 1)


NAV = write_contents('<li><a href="c{at}.html">{title}</a>', "</li>", "<ol>", "</ol>")
NCX = write_contents(
    '<navPoint><navLabel><text>{title}</text></navLabel><content src="c{at}.html"/>', "</navPoint>"
)
NESTED = {
    "a.md": write_markdown(), "a.html": write_html(), "a.docx": write_docx(), "a.odt": write_odt(),
    "headings.epub": write_epub(), "nav.epub": write_epub(NAV), "ncx.epub": write_epub(ncx=NCX),
}  # fmt: skip


@pytest.mark.parametrize("name", NESTED)
def test_sections_are_inside_each_other_as_their_headings(name: str) -> None:
    document = read(NESTED[name], name)
    found = find_sections(document)
    assert [(one.level, one.heading) for one in found] == HEADS
    for at, one in enumerate(found):
        later = [other for other in found[at + 1 :] if other.level <= one.level]
        assert one.end == (later[0].start if later else len(document.text))
    ((asked, *_),) = [find_named_sections(words, fold(words), found) for words in ["section 4.2"]]
    assert (asked.title, asked.end) == ("Nets", found[3].start)


def test_numbered_headings_of_markdown_come_once() -> None:
    heads = ["1 Sites", "1.1 Why", "1.2 Where", "1.3 When", "2 Methods"]
    text = "".join(f"{'#' * one.index(' ')} {one}\n\n{prose(1)}\n\n" for one in heads)
    assert [one.heading for one in find_sections(read(text, "book.md"))] == heads


def test_numbers_count_where_levels_are_all_the_same() -> None:
    numbers = ["1", "1.1", "2", "2.1", "2.2", "3"]
    page = "".join(
        f"<h2>{one} {word.title()}</h2><p>{prose(1)}</p>"
        for one, word in zip(numbers, WORDS, strict=False)
    )
    found = find_sections(read(page, "a.html"))
    assert [(one.number, one.level) for one in found] == [(n, 2 + n.count(".")) for n in numbers]


def test_bookmarks_inside_bookmarks() -> None:
    data = pdf([prose(1, 1), prose(2, 1)], [("The Gate", 0), ("Old Debts", 1)])
    flat = b"/Title (The Gate) /Parent"
    number = int(re.findall(rb"(\d+) 0 obj\s*<< /Title \(Old Debts\)", data)[0])
    nested = data.replace(flat, b"/First %d 0 R /Last %d 0 R " % (number, number) + flat)
    nested = nested.replace(b" /Next %d 0 R" % number, b"")
    found = find_sections(read(nested, "b.pdf"))
    assert [(one.title, one.level) for one in found] == [("The Gate", 1), ("Old Debts", 2)]


def test_numbers() -> None:
    values = [(10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]
    digits = "零一二三四五六七八九"
    for number in range(1, 40):
        roman, left = "", number
        for value, letters in values:
            while left >= value:
                roman, left = roman + letters, left - value
        tens, ones = divmod(number, 10)
        chinese = (digits[tens] if tens > 1 else "") + "十" * (tens > 0) + digits[ones] * (ones > 0)
        for word in (roman, chinese, f"{number:03}"):
            assert parse_number(word) == str(number), word
        word = ["", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"][ones]
        if tens > 1:
            english = " ".join([["TWENTY", "thirty"][tens - 2], *([word] if word else [])])
            assert parse_number(english) == parse_number(english.replace(" ", "-")) == str(number)
            heading = parse_heading(f"Chapter {english.replace(' ', '-')}: The Gate")
            assert heading == ("chapter", str(number), "The Gate")
    words = {"third": "3", "Zwölfter": "12", "première": "1", "tercera": "3", "4.15": "4.15"}
    words |= {"twenty-third": "23", "thirtieth": "30", "nineteen": "19", "третья": "3"}
    assert {word: parse_number(word) for word in words} == words
    assert [parse_number(word) for word in ("IIII", "did", "", "Ahab")] == [""] * 4
    lines = ["Twenty-two men came.", "Erster Schnee", "Первый снег"]  # no kind of heading
    assert [parse_heading(line) for line in lines] == [None] * 3
    assert parse_heading("Глава первая. Дом") == ("chapter", "1", "Дом")
    heads = {"EPOCH THE SECOND.": ("epoch", "2", ""), "I. The Period": ("", "1", "The Period")}
    assert {line: parse_heading(line) for line in heads} == heads
