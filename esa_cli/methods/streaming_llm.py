"""StreamingLLM: the document's first tokens (sinks) and the most recent ones, nothing between.

    attended   I and the last K + L tokens: the whole budget is spent on what is recent
    position   a token's index among those attended to (`contiguous`), never its place in the text

Source: Xiao et al., "Efficient Streaming Language Models with Attention Sinks", arXiv 2309.17453.
Unlike the original,
- it keeps 4 sinks; here I is the preset's, so that methods compare at one budget;
- its window moves with every token; here with every chunk, whose queries all see the same L;
- what left the window is forgotten there; here it stays in memory and is not looked at.
InfLLM's comparison numbers the sinks otherwise: that is the position encoding `streaming`.
"""

from __future__ import annotations

from typing import Any

from esa_cli.methods.recipes import OWN_SCORE, Base, recipe


@recipe(
    "streaming-llm",
    about="first and most recent tokens only, numbered as one short text",
    source="Xiao et al., Efficient Streaming Language Models with Attention Sinks, "
    "arXiv 2309.17453",
    cost="2 F (I + L), L taking the whole budget",
)
def streaming_llm(base: Base) -> dict[str, Any]:
    return {
        "window": base.local_only(),
        "selector": {"name": "none"},
        **OWN_SCORE,
        "position": {"name": "contiguous"},
        "reading": "local",
    }
