"""Selectors and recipes of the paper and of its neighbours, one method a file.

Importing this registers them. Each file says its formula, its source, and where it differs from
what was published. `by_head` and `blocks` are what several share.
"""

from esa_cli.methods import (
    esa_recipes,
    full,
    infllm,
    lm_infinite,
    loki,
    quest,
    streaming_llm,
    tokenselect,
)

__all__ = [
    "esa_recipes",
    "full",
    "infllm",
    "lm_infinite",
    "loki",
    "quest",
    "streaming_llm",
    "tokenselect",
]
