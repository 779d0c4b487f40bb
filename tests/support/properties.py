"""Settings of property tests: the same few examples in every run of the unit tests; in a soak, as
many as $ESA_SOAK_EXAMPLES says, and others each time.

A test that imports this has them.
"""

from __future__ import annotations

import os
import random
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("ESA_SOAK_EXAMPLES", "0"))
FEW = 30
settings.register_profile(
    "esa",
    max_examples=EXAMPLES or FEW,
    derandomize=not EXAMPLES,
    print_blob=bool(EXAMPLES),
    database=None,
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.function_scoped_fixture,
        HealthCheck.data_too_large,
    ],
)
settings.load_profile("esa")


def seeds(count: int, first: int = 0) -> list[int]:
    """Seeds of a test that draws by itself: `count` from `first` on; in a soak as many times more
    as of properties, and others each time."""
    if not EXAMPLES:
        return [*range(first, first + count)]
    return [random.randrange(1 << 30) for _ in range(count * max(1, EXAMPLES // FEW))]


WORDS = st.sampled_from(["", " ", "0", "-1", "x", "name", "null", "{question}", "\0", "\x1b[31m",
                         "\ud800", "é\n", "..", "/", "a" * 300])  # fmt: skip
NUMBERS = st.sampled_from([0, 1, -1, 2**31, 2**63, 2**64, -(2**63), 10**400]) | st.integers()
SCALARS: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | NUMBERS | st.floats() | WORDS | st.text(max_size=8)
)


def trees(keys: list[str], scalars: st.SearchStrategy[Any] = SCALARS) -> st.SearchStrategy[Any]:
    """Data as of YAML or JSON: mappings with these keys or others, lists, and scalars."""
    names = st.sampled_from(keys) | st.text(max_size=4)
    return st.recursive(
        scalars,
        lambda below: st.lists(below, max_size=3) | st.dictionaries(names, below, max_size=4),
        max_leaves=12,
    )


def expect_one_line(error: Any) -> None:
    """An error's message is one line, and short enough to be read."""
    message = error.message
    assert message.strip(), repr(error)
    assert len(message) < 2000, message
    assert not {"\n", "\r"} & set(message), message
