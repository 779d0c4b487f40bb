"""Formulas in MathML as one line of text: x^2, a_(i+1), (1)/(2), [1, 2; 3, 4].

Close to how people type formulas, so that a model can read them. Spacing and fonts are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_PLAIN = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


def linear(element: Any) -> str:
    """The formula of one MathML element, without white space around it."""
    name = _name(element)
    if name in ("annotation", "annotation-xml"):
        return ""
    if name in _TOKENS:
        return " ".join("".join(element.itertext()).split())
    parts = list(_parts(element))
    if name in _SHAPES and len(parts) == _SHAPES[name].count("{"):
        return _SHAPES[name].format(*map(_grouped, parts))
    if name == "msqrt":
        return f"√({''.join(parts)})"
    if name == "mfenced":
        inside = ", ".join(parts)
        return f"{element.get('open', '(')}{inside}{element.get('close', ')')}"
    if name == "mtable":
        rows = "; ".join(part for part in parts if part)
        return rows if _fenced(element) or _aligned(parts) else f"[{rows}]"
    if name in ("mtr", "mlabeledtr"):
        return _row(parts)
    return _joined(parts)


def _parts(element: Any) -> Iterator[str]:
    """What is inside, and text that stands between where none should stand."""
    if element.text and element.text.strip():
        yield element.text.strip()
    for child in element:
        if isinstance(child.tag, str):
            yield linear(child)
        if child.tail and child.tail.strip():
            yield child.tail.strip()


_TOKENS = frozenset({"mi", "mn", "mo", "mtext", "ms"})
_SHAPES = {
    "msup": "{}^{}",
    "msub": "{}_{}",
    "msubsup": "{}_{}^{}",
    "munder": "{}_{}",
    "mover": "{}^{}",
    "munderover": "{}_{}^{}",
    "mfrac": "{}/{}",
    "mroot": "{}^(1/{})",
}
_RELATIONS = frozenset("=<>≤≥≠≈≡→⇒⇔∈⊆⊂")
_SPACED = _RELATIONS | frozenset("+−-±")


def _name(element: Any) -> str:
    return str(element.tag).rpartition("}")[2].rpartition(":")[2].lower()


def _grouped(text: str) -> str:
    """Brackets around what is more than one letter or number."""
    closed = set(text) <= _PLAIN or len(text) < 2
    return text if closed else f"({text})"


def _row(cells: list[str]) -> str:
    """Cells of a matrix get commas; an equation cut into cells to be aligned gets none."""
    cells = [cell for cell in cells if cell]
    return (" " if any(cell[0] in _RELATIONS for cell in cells[1:]) else ", ").join(cells)


def _aligned(rows: list[str]) -> bool:
    """Whether a table holds lines of equations, not a matrix."""
    return any(f" {sign}" in row for row in rows for sign in _RELATIONS)


def _fenced(table: Any) -> bool:
    """Whether a table has brackets around it already."""
    before, around = table.getprevious(), table.getparent()
    while before is None and around is not None and _name(around) in ("mrow", "mstyle"):
        before, around = around.getprevious(), around.getparent()
    if before is None:
        return around is not None and _name(around) == "mfenced"
    return _name(before) == "mo" and "".join(before.itertext()).strip() in tuple("([{|")


def _joined(parts: list[str]) -> str:
    """Parts of a formula; operators that relate two sides stand free, words do not touch."""
    out = last = ""
    for part in filter(None, parts):
        words = last.isalpha() and part.isalpha() and len(last) + len(part) > 2
        if part in _RELATIONS or (part in _SPACED and out):
            out += f" {part} "
        else:
            out += f" {part}" if words else part
        last = part
    return " ".join(out.split())
