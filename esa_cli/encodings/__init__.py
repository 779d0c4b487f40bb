"""Position encodings of the paper's baselines, one method a file; importing this registers them.

Where far tokens are put:
    infllm        one fixed distance, just inside L
    lm-infinite   one fixed distance, the first one beyond L
    streaming     kept in order, a whole L away (the original StreamingLLM's numbering, a token's
                  position is its index among those kept, is `contiguous` in `positions`)
    rerope        one fixed distance w, which near tokens are not seen beyond either
True positions, rotated at other frequencies than the host's:
    interpolation, ntk, ntk-dynamic, yarn

Knows nothing about attention: an encoding returns positions and frequencies only.
"""

from esa_cli.encodings import (
    infllm,
    interpolation,
    lm_infinite,
    ntk,
    origin,
    rerope,
    streaming,
    yarn,
)

__all__ = [
    "infllm",
    "interpolation",
    "lm_infinite",
    "ntk",
    "origin",
    "rerope",
    "streaming",
    "yarn",
]
