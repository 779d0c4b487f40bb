"""The tables of `docs/models.md`, from `esa_cli/models/supported_families.py`.

.venv/bin/python tests/support/family_table.py    # writes them anew
"""

from __future__ import annotations

from pathlib import Path

from esa_cli.models.supported_families import FAMILIES, LIMITS, Family

DOC = Path(__file__).parents[2] / "docs" / "models.md"
PAIRS = {"half": "halves", "interleaved": "neighbours", "reversed": "halves, backwards"}


def rotary(family: Family) -> str:
    """Which dimensions rotate together, how many of them, and in which layers."""
    parts = [PAIRS[family.pairs]]
    if family.partial:
        parts.append("part of a head")
    if family.rotating:
        parts.append(f"layers of `{family.rotating}`")
    return ", ".join(parts)


def logits(family: Family) -> str:
    """What is done with the output of the last matrix."""
    named = [
        ("times", family.multiply),
        ("divided by", family.divide),
        ("soft cap", family.cap),
    ]
    return ", ".join(f"{word} `{setting}`" for word, setting in named if setting)


def tables() -> dict[str, str]:
    """Each table by the name of its markers."""
    supported = ["| `model_type` | models | rotary pairs | logits |", "|-|-|-|-|"]
    for kind, family in FAMILIES.items():
        supported.append(f"| `{kind}` | {family.models} | {rotary(family)} | {logits(family)} |")
    reasons: dict[str, list[str]] = {}
    for kind, reason in LIMITS.items():
        reasons.setdefault(reason, []).append(f"`{kind}`")
    refused = ["| `model_type` | why not |", "|-|-|"]
    refused += [f"| {', '.join(kinds)} | {reason} |" for reason, kinds in reasons.items()]
    return {"supported": "\n".join(supported), "refused": "\n".join(refused)}


def with_tables(text: str) -> str:
    """The document's text with its tables made anew."""
    for name, table in tables().items():
        before, rest = text.split(f"<!-- {name} -->\n")
        text = f"{before}<!-- {name} -->\n{table}\n{rest[rest.index('<!-- end -->') :]}"
    return text


if __name__ == "__main__":
    DOC.write_text(with_tables(DOC.read_text("utf-8")), "utf-8")
