"""From rows to figures, and from figures to what is seen.

Figures are held to numbers worked out by hand. Pages and pictures are held to what they must hold:
every cell, nothing that loads or runs, colours that can be told apart.
"""

from __future__ import annotations

import base64
import hashlib
import random
import re
import struct
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from esa_cli.errors import EsaError
from esa_cli.evaluation.report import figures
from esa_cli.evaluation.report import figures as chart_module
from esa_cli.evaluation.report import report_page as html
from esa_cli.evaluation.report import terminal_tables as terminal
from esa_cli.evaluation.report.statistics import Summary, depth_bin, summarise, wilson, wrong
from esa_cli.system.pages import page_style as look

HEADER = {
    "esa": "9.9",
    "command": "esa selftest needle",
    "model": "tiny",
    "preset": "p",
    "context": 64,
}
EVIL = """<script>alert("1")</script><img src=x onerror='alert(2)'>&amp;"""


def row(method: str = "esa", length: int = 8000, score: float = 1.0, **more: Any) -> dict[str, Any]:
    """A row as `esa selftest` writes it."""
    return {
        "test": "needle", "method": method, "length": length, "sample": 0, "seed": 0,
        "question": "q", "depth": None, "prompt": "Who?", "answer": "Bottle",
        "expected": ["Bottle"], "score": score, "recall": None, "why": None, "tokens": {},
        "time": {"read_s": 10.0, "ask_s": 1.0}, "dense": False, **more,
    }  # fmt: skip


def dense(score: float = 1.0, **more: Any) -> dict[str, Any]:
    return row("dense", **{"length": 100, "score": score, "dense": True, **more})


def many(methods: int = 4, lengths: int = 4, layers: int = 24, name: str = "method") -> list[Any]:
    """Rows of three tests, one of them without depths."""
    chance = random.Random(7)
    rows = [dense(chance.random(), test=test) for test in ("needle", "passkey", "words")]
    for test in ("needle", "passkey", "words"):
        for m in range(methods):
            for length in range(lengths):
                for tenth in range(10):
                    recall = [chance.random() for _ in range(layers)]
                    rows.append(
                        row(
                            f"{name}-{m}", 8000 + 7777 * length, chance.random(), test=test,
                            question=f"{test}-{tenth}",
                            depth=None if test == "words" else (tenth + 0.5) / 10,
                            why=chance.choice(["answered", "not selected", "selected, not used"]),
                            recall={"mean": sum(recall) / layers, "layers": recall},
                        )
                    )  # fmt: skip
    return rows


# rows


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"score": 1.5}, "'score'"),
        ({"score": float("nan")}, "'score'"),
        ({"score": True}, "'score'"),
        ({"depth": 45}, "'depth'"),
        ({"length": "8k"}, "'length'"),
        ({"why": ["x"]}, "'why'"),
        ({"time": {"read_s": "1"}}, "'time.read_s"),
        ({"recall": {"mean": 0.5, "layers": [2]}}, "'recall.layers.0'"),
        ({"method": None}, "'method'"),
        ({}, ""),
    ],
)
def test_an_invalid_row_is_described(changes: dict[str, Any], says: str) -> None:
    found = wrong(row(**changes))
    assert (says in found) if says else found == ""


# figures


def test_figures_worked_out_by_hand() -> None:
    recalls = [{"mean": 0.5, "layers": [1.0, 0.0]}, {"mean": 0.25, "layers": [0.5, None]}]
    summary = summarise(
        [
            row("b", 16000, 1.0, why="answered", recall=recalls[0]),
            row("b", 16000, 0.5, why="not selected", recall=recalls[1]),
            row("b", 16000, 0.0, why="not selected", time={"read_s": 40.0, "ask_s": None}),
            row("b", 8000, 1.0),
            row("a", 8000, 0.0, time=None),
            dense(1.0), dense(0.5, length=200), row("a", 8000, 1.0, test="other"),
        ]
    )  # fmt: skip
    assert summary.tests == ("needle", "other")
    assert list(summary.cells) == [
        ("needle", "a"), ("needle", "a", 8000), ("needle", "b"), ("needle", "b", 8000),
        ("needle", "b", 16000), ("other", "a"), ("other", "a", 8000),
    ]  # fmt: skip
    cell = summary.cell("needle", "b", 16000)
    assert cell is not None
    assert (cell.n, cell.mean, cell.retained) == (3, 0.5, 0.5 / 0.75)
    assert (cell.recall, cell.layers) == (0.375, (0.75, 0.0))
    assert cell.why == {"answered": 1, "not selected": 2}
    assert (cell.read_s, cell.ask_s) == (20.0, 1.0)
    pooled = summary.cell("needle", "b")
    assert pooled is not None
    assert (pooled.n, pooled.mean) == (4, 0.625)
    assert pooled.why == {"answered": 1, "not known": 1, "not selected": 2}
    ceiling = summary.ceiling("needle")
    assert ceiling is not None
    assert (ceiling.n, ceiling.mean, ceiling.retained) == (2, 0.75, None)
    assert summary.dense_lengths("needle") == [100, 200]


def test_what_is_not_there_is_none_and_not_zero() -> None:
    summary = summarise([row("a", 8000, 0.0, time=None), row("b", 16000)])
    assert summary.cell("needle", "a", 16000) is None
    assert summary.cell("needle", "c") is None
    assert summary.ceiling("needle") is None
    cell = summary.cell("needle", "a", 8000)
    assert cell is not None
    assert (cell.mean, cell.retained, cell.recall, cell.layers) == (0.0, None, None, ())
    assert (cell.read_s, cell.ask_s) == (None, None)
    assert not summary.has_depths("needle")
    assert summarise([row(), dense(0.0)]).cells["needle", "esa"].retained is None
    assert summary.depths("needle", "a", 8000) == [None] * 10


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [(8, 10, 0.4902, 0.9433), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (1, 1, 0.2065, 1.0)],
)
def test_wilson_has_the_values_of_the_tables(right: int, n: int, low: float, high: float) -> None:
    assert wilson(right / n, n) == pytest.approx((low, high), abs=5e-5)


def test_depths_fall_into_tenths() -> None:
    assert [depth_bin(i / 10) for i in range(11)] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9]
    assert depth_bin(0.3 - 0.1) == 2, "0.19999999999999998 is meant to be 0.2"
    assert (depth_bin(0.0999), depth_bin(0.45)) == (0, 4)
    summary = summarise([row(depth=0.41, score=0.5), row(depth=0.49), row(depth=1.0, score=0.0)])
    found = summary.depths("needle", "esa", 8000)
    assert [(i, each.mean, each.n) for i, each in enumerate(found) if each] == [
        (4, 0.75, 2), (9, 0.0, 1),
    ]  # fmt: skip


# colours


def contrast(one: str, other: str) -> float:
    low, high = sorted((look.luminance(one), look.luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_scale_only_gets_brighter_and_its_numbers_can_be_read() -> None:
    colours = [look.colour(i / 100) for i in range(101)]
    brightness = [look.luminance(colour) for colour in colours]
    assert brightness == sorted(set(brightness))
    assert min(contrast(colour, look.ink(colour)) for colour in colours) >= 4.5
    assert (colours[0], colours[40], colours[100]) == (look.SCALE[0], look.SCALE[2], look.SCALE[-1])


@pytest.mark.parametrize(
    ("surfaces", "lines"),
    [(look.LIGHT, look.LIGHT_LINES), (look.DARK, look.DARK_LINES)],
    ids=["light", "dark"],
)
def test_both_themes_have_contrast(surfaces: dict[str, str], lines: tuple[str, ...]) -> None:
    for ground in (surfaces["page"], surfaces["raised"]):
        for text in ("text", "soft", "link"):
            assert contrast(surfaces[text], ground) >= 4.5, text
        assert min(contrast(line, ground) for line in lines) >= 3
    assert contrast(surfaces["soft"], surfaces["none"]) >= 4.5
    assert len({*lines}) == len(lines)


# terminal


def printed(summary: Summary, width: int = 80, **options: Any) -> str:
    console = Console(width=width + 40, **options)
    with console.capture() as capture:
        console.print(terminal.report(summary, width))
    return capture.get()


@pytest.mark.parametrize(
    ("methods", "lengths", "layers"), [(1, 1, 1), (1, 23, 24), (4, 4, 24), (9, 3, 126), (7, 17, 2)]
)
def test_nothing_is_wider_than_80_columns(methods: int, lengths: int, layers: int) -> None:
    rows = many(methods, lengths, layers, name="a-method-with-quite-a-long-name-方法")
    text = printed(summarise(rows))
    assert max(map(cell_len, text.splitlines())) <= 80
    evil = printed(summarise([row("\x1b[1m[i]x[/i]", depth=0.5, why="a\x1b[0m")]))
    assert "\x1b" not in evil
    assert "[1m[i]x[/i]" in evil


def test_the_terminal_shows_every_cell() -> None:
    first, second = row("a", 8000, 0.11, depth=0.05), row("a", 16000, 0.22, depth=0.15)
    text = printed(summarise([first, second, row("b", 8000, 0.33, depth=0.95), dense(0.5)]))
    lines = text.splitlines()
    assert any(line.split() == ["a", "11", "(22)", "22", "(44)", "1"] for line in lines)
    assert any(line.split() == ["b", "33", "(66)", "–", "1"] for line in lines)
    assert any(line.split() == ["0–10", "11", "–", "0–10", "–", "–"] for line in lines)
    assert any(line.split() == ["90–100", "–", "–", "90–100", "33", "–"] for line in lines)
    assert "dense ceiling 50 at 100, n 1" in text


def test_colours_are_beside_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    summary = summarise([row(score=0.4, depth=0.05)])
    coloured = printed(summary, force_terminal=True, color_system="truecolor")
    red, green, blue = look.channels(look.colour(0.4))
    assert f"48;2;{red};{green};{blue}m   40" in coloured
    plain = printed(summary, force_terminal=True, color_system="truecolor", no_color=True)
    assert "48;2;" not in plain
    assert " 40\n" in plain


def test_reasons_and_layers_in_the_terminal() -> None:
    recall = {"mean": 0.5, "layers": [0.0, 0.5, 1.0]}
    text = printed(summarise([row(why="not selected", recall=recall), row(why="answered"), row()]))
    lines = [line.split() for line in text.splitlines()]
    assert ["needle", "esa", "1", "1", "0", "1"] in lines
    assert "needle esa ▁▅█ mean 50, least 0 in layer 0" in text
    assert terminal.sparkline([0.0, 1.0, None, None, 1.0], 3) == ("▅·█", 2)


# HTML


class Page(HTMLParser):
    """What a browser would make of it: elements with attributes, and the texts within."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "input"):
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, "elements are closed in order"

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts[self.open[-1]][-1] += data

    def all(self, tag: str) -> Iterator[dict[str, str | None]]:
        return (attributes for name, attributes in self.elements if name == tag)


@pytest.fixture(scope="module")
def whole_text() -> str:
    return html.page({**HEADER, "settings": {"a": 1}}, tuple(many()))


@pytest.fixture(scope="module")
def whole(whole_text: str) -> Page:
    return Page(whole_text)


def test_the_page_loads_nothing(whole_text: str, whole: Page) -> None:
    text = whole_text
    assert "http" not in text.replace("http-equiv", "")
    assert "url(" not in text.replace("url(#", "")
    assert "@import" not in text
    loading = {"link", "img", "iframe", "object", "embed", "base", "image", "video", "audio"}
    for tag, attributes in whole.elements:
        assert tag not in loading
        assert not {"src", "srcset", "action"} & {*attributes}
        for name in ("href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith("#")


def test_what_came_from_a_file_is_escaped() -> None:
    evil = row(
        EVIL, test=EVIL, question=EVIL, prompt=EVIL, answer=EVIL, expected=[EVIL], why=EVIL,
        depth=0.5, recall={"mean": 1.0, "layers": [1.0]},
    )  # fmt: skip
    header = {**dict.fromkeys(html.FACTS, EVIL), "settings": {EVIL: EVIL}}
    page = Page(html.page(header, (evil, dense(test=EVIL))))
    assert len(page.texts["script"]) == 1
    assert not list(page.all("img"))
    for _, attributes in page.elements:
        assert not any(name.startswith("on") for name in attributes)
    answers = [a for a in page.texts["p"] if EVIL in a]
    assert answers, "the answer is there, as text"
    assert EVIL in page.texts["pre"]
    assert EVIL in page.texts["h2"]


def test_odd_texts_and_cells_without_questions(tmp_path: Path) -> None:
    odd = row("a", 8000, depth=0.05, prompt="x" * 5000, answer="half a pair: \ud83d")
    html.write_html(tmp_path / "page.html", {}, [odd, row("b", 16000, depth=0.95, answer="方")])
    page = Page((tmp_path / "page.html").read_text("utf-8"))
    assert "x" * 4000 + "\n[1,000 more characters in the rows]" in page.texts["pre"]
    assert {"half a pair: ?", "方"} <= {*page.texts["p"]}
    missing = [a for a in page.all("td") if a.get("class") == "none"]
    assert len(missing) == 2 + (40 - 2), "2 of 4 cells, and all but 2 tenths of 4 columns"
    assert "No questions were asked." in "".join(Page(html.page({}, ())).texts["p"])


def test_only_our_script_may_run(whole: Page) -> None:
    page = whole
    (script,) = page.texts["script"]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(m["content"] for m in page.all("meta") if "http-equiv" in m)
    assert policy is not None
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")


def test_the_page_shows_every_cell(whole: Page) -> None:
    rows = many()
    summary, page = summarise(rows), whole
    pills = page.texts["span"]
    wanted = [look.percent(cell.mean) for key, cell in summary.cells.items() if len(key) == 3]
    assert len(wanted) == 3 * 4 * 4
    assert not {*wanted} - {*pills}
    maps = [a for a in page.all("table") if a.get("class") == "map"]
    assert len(maps) == 2 * 4
    cells = [a for a in page.all("td") if "background" in (a.get("style") or "")]
    assert len(cells) == sum(len(key) == 4 for key in summary.cells) == 2 * 4 * 4 * 10
    assert len([a for a in page.all("tr") if "data-method" in a]) == len(rows)
    for name in ("esa selftest needle", "tiny", "p", "9.9"):
        assert name in page.texts["dd"]


# charts


def test_a_missing_value_is_a_gap_in_the_line() -> None:
    chart = figures.recall_chart({"a": [0.5, None, 1.0], "_b": [None]})
    (drawn, empty) = (line.get_ydata() for line in chart.figure.axes[0].get_lines())
    assert [str(float(height)) for height in drawn] == ["50.0", "nan", "100.0"]
    assert str(float(empty[0])) == "nan"
    assert chart.description == "Recall by layer. a: 50 to 100 %; _b: no values"
    page = Page(html.recall_page({"a": [0.5], "_b": [None], EVIL: [1.0]}, "r", {"model": "tiny"}))
    assert {"a", " _b"} <= {*page.texts["text"]}, "both are in the legend"
    assert not list(page.all("img")), "a name is text"


def test_a_chart_follows_the_theme_of_the_page() -> None:
    svg = figures.score_chart(summarise([row("a"), row("b"), dense()]), "needle").svg()
    for name in ("text", "soft", "grid", "line", "l0", "l1"):
        assert f": var(--{name})" in svg
    assert not {*chart_module.VARIABLES} & {*re.findall("#[0-9a-f]{6}", svg)}
    assert svg == figures.score_chart(summarise([row("a"), row("b"), dense()]), "needle").svg()


# PNG


def size(chart: chart_module.Chart, folder: Path) -> tuple[int, int]:
    path = folder / "chart.png"
    chart.write_png(path)
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


@pytest.fixture
def no_pyplot(monkeypatch: pytest.MonkeyPatch) -> None:
    """matplotlib without pyplot: importing it would fail."""
    pytest.importorskip("matplotlib")
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)


@pytest.mark.usefixtures("no_pyplot")
def test_pictures_of_a_run(tmp_path: Path) -> None:
    summary = summarise(many(2, 2, 2))
    series = {"closed-form": [0.2, 0.4], "$pca_{$": [0.3, None], "_learned": [1.0, 0.0]}
    for chart in (
        figures.score_chart(summary, "words"),
        figures.heat_map(summary, "needle"),
        figures.recall_chart(series, "recall@64 $"),
        figures.picture(summarise([row()])),
    ):
        width, height = size(chart, tmp_path)
        assert 700 <= width <= 2400
        assert 500 <= height <= 1600
    with pytest.raises(EsaError, match="nothing to draw"):
        figures.picture(summarise([dense()]))


@pytest.mark.usefixtures("no_pyplot")
def test_a_heat_map_has_the_colours_of_its_cells(tmp_path: Path) -> None:
    from matplotlib.image import imread
    from numpy import unique

    rows = [row("$a$", 8000, 1.0, depth=0.05), row("$a$", 8000, 0.4, depth=0.55)]
    path = tmp_path / "map.png"
    figures.picture(summarise(rows)).write_png(path)
    pixels = (imread(path)[:, :, :3] * 255).round().astype(int).reshape(-1, 3)
    numbers = unique(pixels @ [1 << 16, 1 << 8, 1]).tolist()
    there = {tuple(number.to_bytes(3)) for number in numbers}
    assert {look.channels(look.colour(1.0)), look.channels(look.colour(0.4))} <= there
    assert look.channels(look.LIGHT["none"]) in there
    assert look.channels(look.colour(0.0)) not in there, "not asked is not 0"


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(EsaError) as caught:
        figures.recall_chart({"a": [0.5]})
    assert caught.value.hint == "pip install 'esa-cli[plot]'"
