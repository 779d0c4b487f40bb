"""The page in a real browser: runs where Playwright (extra `browser`) and a Chromium are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sample_files
from browser import browser_path, headless_browser
from fake_asker import fake_book
from live_server import TOKEN, LiveServer, until
from quoting_asker import QuotingAsker

from esa_cli.documents.document import Document
from esa_cli.documents.readers.text_builder import Mark
from esa_cli.errors import HistoryError
from esa_cli.qa.answering.reply import CheckedSentence
from esa_cli.qa.ingestion.library_texts import sync_folder
from esa_cli.storage.library import Library

pytest.importorskip("playwright")
pytestmark = [
    pytest.mark.process,
    pytest.mark.browser,
    pytest.mark.timeout(120),
    pytest.mark.skipif(browser_path() is None, reason="needs a Chromium"),
]

MILL = "The mill of Brookfield burned down in 1812. Nobody was hurt.\n"
NASTY = (
    "<script>document.title='script'</script> The <img src=x onerror=\"document.title='image'\"> "
    "mill \U0001f600 of \u202eevil\u202c <b>Brookfield</b> burned again.\n"
)
NASTY_NAME = "x<img src=x onerror=document.title='name'>\u202etxt.exe.md"
QUESTION = "When did the mill of Brookfield burn down?"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with headless_browser() as found:
        yield found


class Tab:
    """A page of the browser that fails on every error of its scripts or policy."""

    def __init__(self, browser: Any, url: str, **context: Any) -> None:
        context.setdefault("viewport", {"width": 1300, "height": 800})
        self.context = browser.new_context(**context)
        self.page = self.context.new_page()
        self.page.set_default_timeout(15_000)
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._note)
        self.page.goto(url)

    def _note(self, message: Any) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.errors.append(message.text)

    def ask(self, question: str = QUESTION) -> None:
        self.page.fill("#question", question)
        self.page.press("#question", "Enter")

    def answers(self) -> list[str]:
        found: list[str] = self.page.locator(".answer").all_inner_texts()
        return found

    def focused(self) -> str:
        return str(self.page.evaluate("() => document.activeElement.id"))


class Visits:
    """Servers and tabs of one test."""

    def __init__(self, browser: Any, folder: Path) -> None:
        self.browser, self.folder = browser, folder
        self.asker = QuotingAsker()
        self.tabs: list[Tab] = []
        self.servers: list[LiveServer] = []

    def open(self, fixed: Any = None, context: Any = None, **more: Any) -> Tab:
        first = Document("brookfield.txt", MILL * 3, "brookfield.txt", "utf-8", 99)
        books = [fake_book(first.text, first)] if fixed is None else fixed
        server = LiveServer(self.asker, self.folder, fixed=books, **more)
        self.servers.append(server)
        tab = Tab(self.browser, server.url.removesuffix("v1"), **(context or {}))
        self.tabs.append(tab)
        return tab


@pytest.fixture
def visits(browser: Any, tmp_path: Path) -> Iterator[Visits]:
    (tmp_path / "open").mkdir()
    found = Visits(browser, tmp_path)
    yield found
    errors = [error for tab in found.tabs for error in tab.errors]
    for tab in found.tabs:
        tab.context.close()
    for server in found.servers:
        server.close()
    assert errors == []


def long_document() -> Document:
    lines = [f"Line {number} says nothing of note \U0001f600.\n" for number in range(3000)]
    lines[2000] = "The mill of Brookfield burned down in 1812.\n"
    text = "".join(lines)
    early, half = text.index("Line 700 "), text.index("Line 1500 ")
    marks = (Mark(0, 1), Mark(early, 1, "Nothing"), Mark(half, 2, "Fires"))
    return Document("long.pdf", text, "long.pdf", "", 9, marks)


def test_a_question_its_answer_and_the_place_in_the_document(visits: Visits) -> None:
    document = long_document()
    tab = visits.open(fixed=[fake_book(document.text, document)])
    page = tab.page
    tab.ask()
    page.wait_for_selector(".passage")
    assert tab.answers() == ["The mill of Brookfield burned down in 1812."]
    assert "page 2 · line 2,001 · Fires" in page.inner_text(".passage >> nth=0")
    page.click(".passage >> nth=0")
    page.wait_for_selector(".number.here")
    assert page.inner_text(".text mark") == tab.answers()[0]
    assert page.locator("#text .number.here").is_visible()
    assert page.inner_text("#reading-place") == "page 2 · line 2,001 · Fires"
    assert not page.locator("#reading-note").is_visible()
    assert page.inner_text("#text") not in document.text, "only a piece is loaded"
    while page.locator("#earlier").is_visible():
        page.click("#earlier")
        page.wait_for_timeout(150)
    assert page.inner_text("#text").startswith("Line 0 says nothing of note \U0001f600.")
    assert "Line 700 " in page.inner_text("#text")
    assert page.locator("#text .page").count() == 1, "a chapter begins no page"


def test_hostile_texts_and_names_are_only_text(visits: Visits) -> None:
    (visits.folder / "open" / NASTY_NAME).write_text(NASTY + MILL, "utf-8")
    visits.asker.answers["x"] = "y"
    tab = visits.open(fixed=[])
    page = tab.page
    page.wait_for_selector("#list input:checked")
    tab.ask("mill Brookfield burned again <img src=x onerror=document.title='asked'>")
    page.wait_for_selector(".passage")
    for number in range(page.locator(".passage").count()):
        page.click(f".passage >> nth={number}")
        page.wait_for_selector(".number.here")
    page.click("#list button:text('›')")
    page.wait_for_selector(".piece")
    assert page.title() == "esa"
    assert page.locator("img, b, #main script, #documents script, #reading script").count() == 0
    assert "<script>document.title" in page.inner_text("#text")
    everything = page.evaluate("() => document.body.innerText")
    assert "\u202e" not in everything
    assert "<img src=x onerror=document.title='name'>\ufffdtxt.exe.md" in everything


def test_an_unsupported_sentence_is_underlined(visits: Visits) -> None:
    first, second = "The \U0001f600 mill burned;", "it belonged to <b>Ann</b> in 1803."
    visits.asker.sentences = (
        CheckedSentence(0, len(first), True, 1),
        CheckedSentence(len(first) + 1, len(f"{first} {second}"), False, None, ("1803", "<b>")),
    )
    tab = visits.open(fixed=[fake_book(f"{first} {second}")])
    tab.ask(f"{first} {second}")
    marked = tab.page.locator(".unsupported")
    marked.wait_for()
    assert marked.all_inner_texts() == [second]
    assert marked.get_attribute("title") == "Not in the passages: 1803, <b>"
    assert tab.answers() == [f"{first} {second}"]
    assert "1803, <b>." in tab.page.inner_text(".note")


def test_passages_of_a_table_have_rows_and_none_comes_twice(visits: Visits) -> None:
    row = "Mill of Brookfield; burned down; 1812.\n"
    document = Document("mills.csv", "Town; fate; year.\n" + row * 3, "mills.csv", "", 9)
    visits.asker.certainty = "answer"
    tab = visits.open(fixed=[fake_book(document.text, document)])
    tab.ask()
    tab.page.wait_for_selector(".passage")
    assert tab.page.locator(".passage").count() == 1
    assert "row 2" in tab.page.inner_text(".passage")


def test_keys(visits: Visits) -> None:
    tab = visits.open()
    page = tab.page
    page.wait_for_selector("#list input:checked")
    assert tab.focused() == "question"
    page.keyboard.type("mill")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("Brookfield burned")
    page.keyboard.press("Enter")
    page.wait_for_selector(".passage")
    assert page.inner_text(".question") == "mill\nBrookfield burned"
    page.focus(".passage >> nth=1")
    outline = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    page.wait_for_selector("[aria-current] .number:text('2')")
    page.wait_for_selector(".number.here")
    assert page.inner_text(".number.here") == "2"
    assert tab.focused() == "pages"
    page.keyboard.press("Escape")
    assert page.locator("#reading").is_hidden()
    assert "2" in page.evaluate("() => document.activeElement.textContent")


def test_stopping_and_choosing_documents(visits: Visits) -> None:
    for name in ("anvil", "harp"):
        (visits.folder / f"open/{name}.txt").write_text(f"The {name} stands in Ulm.", "utf-8")
    tab = visits.open(fixed=[])
    page = tab.page
    page.wait_for_selector("#list input:checked")
    assert page.inner_text("#about") == "About all 2 documents"
    page.uncheck("#group-0")
    assert page.inner_text("#about") == "No document is chosen"
    tab.ask("Where is the harp?")
    assert page.locator(".turn").count() == 0
    page.click(".row:has-text('harp') label")
    assert page.inner_text("#about") == "About harp.txt"
    visits.asker.gate.clear()
    page.press("#question", "Enter")
    page.wait_for_selector("#stop:visible")
    page.click("#stop")
    visits.asker.gate.set()
    page.wait_for_selector("text=Stopped.")
    assert page.input_value("#question") == "Where is the harp?"
    page.press("#question", "Enter")
    page.wait_for_selector(".passage")
    assert [str(book) for book in visits.asker.calls[-1]["books"]] == ["The harp stands in Ulm."]


def test_a_conversation(visits: Visits) -> None:
    tab = visits.open()
    tab.ask("mill Brookfield")
    tab.page.wait_for_selector(".passage")
    tab.ask("Nobody hurt?")
    until(lambda: tab.page.locator(".meta").count() == 2)
    (turn,) = visits.asker.calls[-1]["history"]
    assert (turn.question, turn.answer) == ("mill Brookfield", tab.answers()[0])
    visits.asker.failures["too long"] = HistoryError("the history is too long")
    tab.ask("too long")
    tab.page.wait_for_selector(".failed")
    assert [len(call["history"]) for call in visits.asker.calls[-3:]] == [2, 1, 0]
    tab.page.click("#new")
    assert tab.page.locator(".turn").count() == 0
    tab.ask("mill")
    tab.page.wait_for_selector(".passage")
    assert visits.asker.calls[-1]["history"] == []


def test_the_token_is_typed_and_kept_in_the_tab_alone(visits: Visits) -> None:
    tab = visits.open(token=TOKEN)
    page = tab.page
    addresses: list[str] = []
    page.on("request", lambda request: addresses.append(request.url))
    page.wait_for_selector("#token-dialog[open]")
    page.keyboard.press("Escape")
    assert page.locator("#token-dialog").is_visible()
    page.fill("#token", "wrong")
    page.press("#token", "Enter")
    page.wait_for_selector("text=The token is wrong")
    page.fill("#token", TOKEN)
    page.press("#token", "Enter")
    page.wait_for_selector("#list input:checked")
    tab.ask()
    page.wait_for_selector(".passage")
    page.reload()
    page.wait_for_selector("#list input:checked")
    assert page.locator("#token-dialog").is_hidden()
    assert not [url for url in [*addresses, page.url] if TOKEN in url]
    assert tab.context.cookies() == []
    assert TOKEN not in page.evaluate("() => JSON.stringify(localStorage)")
    other = tab.context.new_page()
    other.goto(page.url)
    other.wait_for_selector("#token-dialog[open]")


def names_and_ticks(page: Any, group: int) -> list[tuple[str, bool]]:
    rows = page.locator(f"#list > .group >> nth={group}").locator("ul .row").all()
    return [(one.inner_text().split("\n")[0], one.locator("input").is_checked()) for one in rows]


def test_hundreds_of_documents_are_one_tick(visits: Visits, tmp_path: Path) -> None:
    library = Library(tmp_path / "library")
    (tmp_path / "many").mkdir()
    for number in range(500):
        text = f"The harp {number} stands in Ulm."
        (tmp_path / f"many/letter {number:03d} about a harp in Ulm.txt").write_text(text, "utf-8")
    with library.open_catalogue() as catalogue:
        sync_folder(catalogue, str(tmp_path / "many"))
    (tmp_path / "open/scan.pdf").write_bytes(sample_files.pdf([None]))
    (tmp_path / "open/note.txt").write_text("The anvil stands in Graz.", "utf-8")
    tab = visits.open(fixed=[], library=library, max_opened=8)
    page = tab.page
    page.wait_for_selector("#list input:checked")
    assert page.locator("#list input").count() == 4, "the large group is closed"
    assert page.inner_text("#about") == "About all 502 documents"
    tab.ask("Where does the anvil stand?")
    page.wait_for_selector(".passage")
    assert tab.answers() == ["The anvil stands in Graz."]
    assert "1 file that cannot be read (scan.pdf)" in page.inner_text(".note")
    page.uncheck("#group-1")
    assert page.inner_text("#about") == "About the whole library, 500 documents"
    tab.ask("Where does the harp 77 stand?")
    until(lambda: len(tab.answers()) == 2 and tab.answers()[1])
    assert {len(call["books"]) for call in visits.asker.calls} == {8}
    page.fill("#filter", "letter 07")
    assert len(names_and_ticks(page, 0)) == 10
    page.click("#group-0")
    assert page.inner_text("#about") == "About 490 documents"
    assert page.evaluate("() => byId('group-0').indeterminate")
    page.fill("#filter", "")
    page.click(".fold >> nth=0")
    assert len(names_and_ticks(page, 0)) == 300
    assert "and 200 documents more" in page.inner_text("#list")


def test_a_dropped_document(visits: Visits) -> None:
    (visits.folder / "open/harp.txt").write_text("The harp stands in Ulm.", "utf-8")
    library = Library(visits.folder / "library")
    tab = visits.open(fixed=[], library=library)
    page = tab.page
    page.wait_for_selector("#list input:checked")
    drop = """(files) => {
        const transfer = new DataTransfer();
        for (const [name, text] of files) transfer.items.add(new File([text], name));
        const options = { dataTransfer: transfer, bubbles: true, cancelable: true };
        document.body.dispatchEvent(new DragEvent("dragover", options));
        if (byId("drop").hidden) throw new Error("nothing shows that files can be dropped");
        document.body.dispatchEvent(new DragEvent("drop", options));
    }"""
    page.evaluate(drop, [["loom.txt", "The loom stands in Graz."], ["bad.txt", ""]])
    page.click("#keep-session")
    page.wait_for_selector("#adding-failures li")
    assert "bad.txt is empty" in page.inner_text("#adding-failures")
    until(lambda: names_and_ticks(page, 0) == [("loom.txt", True)])
    assert page.inner_text("#about") == "About loom.txt"
    tab.ask("Where does the loom stand?")
    page.wait_for_selector(".passage")
    assert tab.answers() == ["The loom stands in Graz."]
    page.click(".passage")
    page.wait_for_selector(".number.here")
    page.reload()
    page.wait_for_selector("#list input:checked")
    assert names_and_ticks(page, 0) == [("loom.txt", True)], "it is kept for the session"
    other = tab.context.new_page()
    other.goto(page.url)
    other.wait_for_selector("#list input:checked")
    assert names_and_ticks(other, 0) == [("harp.txt", True)], "and for this tab alone"
    page.click("[aria-label='Remove loom.txt']")
    until(lambda: names_and_ticks(page, 0) == [("harp.txt", True)])
    assert not library.exists


def test_conversations_last_in_the_browser(visits: Visits) -> None:
    permissions = ["clipboard-read", "clipboard-write"]
    tab = visits.open(context={"permissions": permissions})
    page = tab.page
    tab.ask("mill Brookfield")
    page.wait_for_selector(".actions")
    tab.ask("Nobody hurt?")
    until(lambda: page.locator(".actions").count() == 2)
    page.click("text=Copy >> nth=1")
    page.wait_for_selector("text=Copied")
    copied = page.evaluate("() => navigator.clipboard.readText()")
    assert copied.startswith(tab.answers()[1])
    assert "[1] brookfield.txt, line " in copied
    page.click("text=Ask again >> nth=0")
    until(lambda: page.locator(".actions").count() == 3)
    call = visits.asker.calls[-1]
    assert (call["question"], call["history"]) == ("mill Brookfield", [])
    said = tab.answers()
    page.reload()
    page.wait_for_selector(".passage")
    assert tab.answers() == said
    page.click(".passage >> nth=0")
    page.wait_for_selector(".number.here")
    page.click("#new")
    tab.ask("mill")
    page.wait_for_selector(".actions")
    page.click("#conversations")
    assert page.locator("#kept li").count() == 2
    page.click("#kept .title:has-text('mill Brookfield')")
    assert tab.answers() == said
    tab.ask("Who was hurt?")
    until(lambda: page.locator(".actions").count() == 4)
    assert len(visits.asker.calls[-1]["history"]) == 3
    page.click("#conversations")
    assert page.locator("#kept li").count() == 2
    page.uncheck("#keeps")
    page.click("#delete-all")
    assert page.locator("#none-kept").is_visible()
    page.click("#conversations-close")
    tab.ask("mill again")
    until(lambda: page.locator(".actions").count() == 5)
    keys = page.evaluate("() => Object.keys(localStorage)")
    assert keys == ["esa-keeps-conversations"]


def test_a_narrow_window(visits: Visits) -> None:
    tab = visits.open(context={"viewport": {"width": 390, "height": 780}, "color_scheme": "dark"})
    tab.ask()
    tab.page.wait_for_selector(".actions")
    width = "() => [document.documentElement, document.body].map((one) => one.scrollWidth)"
    assert max(tab.page.evaluate(width)) <= 390
    for name in ("#conversations", "#new", "#add", "#send", ".actions"):
        found = tab.page.locator(name).bounding_box()
        assert found["x"] >= 0
        assert found["x"] + found["width"] <= 390
