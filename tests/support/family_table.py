"""The tables of `docs/models.md`, from `esa_cli/models/attachment/families.py`.

PYTHONPATH=tests .venv/bin/python tests/support/family_table.py    # writes them anew
"""

from __future__ import annotations

from pathlib import Path

from conftest import KINDS

from esa_cli.models.attachment.families import (
    FAMILIES,
    HYBRID_SLIDING_ROTATE,
    PREFIX_SLIDING_ROTATE,
    SLIDING_ROTATE,
    Family,
)
from esa_cli.models.gguf.gguf_settings import GGUF_FAMILIES, GgufFamily

OTHER_LAYERS = {
    "sliding_attention": "windows in some layers",
    "conv'": "convolutions in some layers",
    "linear_attention": "recurrent states in some layers",
}
WINDOWED = (SLIDING_ROTATE, HYBRID_SLIDING_ROTATE, PREFIX_SLIDING_ROTATE)
DOC = Path(__file__).parents[2] / "docs" / "models.md"
PAIRS = {"half": "", "interleaved": "rotates neighbouring pairs", "reversed": "rotates backwards"}


def rotary(family: Family) -> str:
    """Which dimensions rotate together, how many of them, and in which layers."""
    parts = [PAIRS[family.pairs]]
    if family.partial:
        parts.append("rotates part of a head")
    if family.rotating in WINDOWED:
        parts.append(f"rotates only {family.rotating}")
    elif family.rotating:
        parts.append(f"rotates layers of `{family.rotating}`")
    return ", ".join(filter(None, parts))


def attention(kind: str) -> str:
    """What the attention of the tested models has besides full layers."""
    shape, family = KINDS[kind][1], FAMILIES[kind]
    parts = [words for word, words in OTHER_LAYERS.items() if word in str(shape)]
    if family.attention_cap:
        parts.append(f"soft cap of attention `{family.attention_cap}`")
    if family.sinks:
        parts.append("sinks")
    if family.sharing:
        parts.append("last layers share the KV cache of others")
    if family.wide:
        parts.append("keys of two sizes")
    if family.latent:
        parts.append("latents")
    if "llama_4_scaling_beta" in str(shape):
        parts.append("queries scaled by position")
    return ", ".join(parts)


def logits(family: Family) -> str:
    """What is done with the output of the last matrix."""
    named = [
        ("logits times", family.multiply),
        ("logits divided by", family.divide),
        ("soft cap of logits", family.cap),
    ]
    return ", ".join(f"{word} `{setting}`" for word, setting in named if setting)


def tables() -> dict[str, str]:
    """Each table by the name of its markers."""
    supported = ["| `model_type` | models | differs from Llama in |", "|-|-|-|"]
    for kind, family in FAMILIES.items():
        differs = filter(None, [rotary(family), attention(kind), logits(family)])
        cells = [f"`{kind}`", family.models, ", ".join(differs)]
        supported.append(f"| {' | '.join(cells)} |")
    gguf = ["| architecture in GGUF | `model_type` |", "|-|-|"]
    gguf += [f"| `{name}` | {kinds(family)} |" for name, family in GGUF_FAMILIES.items()]
    found = {"supported": supported, "gguf": gguf}
    return {name: "\n".join(lines) for name, lines in found.items()}


def kinds(family: GgufFamily) -> str:
    """What files of an architecture become."""
    others = {"with experts": family.experts, "with windows": family.windowed}
    more = [f"`{kind}` {when}" for when, kind in others.items() if kind]
    return ", ".join([f"`{family.kind}`", *more])


def with_tables(text: str) -> str:
    """The document's text with its tables made anew."""
    for name, table in tables().items():
        before, rest = text.split(f"<!-- {name} -->\n")
        text = f"{before}<!-- {name} -->\n{table}\n{rest[rest.index('<!-- end -->') :]}"
    return text


if __name__ == "__main__":
    DOC.write_text(with_tables(DOC.read_text("utf-8")), "utf-8")
