"""Names and numbers within English sentences, by their form."""

from __future__ import annotations

import re

NAME = re.compile(r"(?<![.!?\"“‘—] )(?<!^)\b(?:[A-Z][a-z]+(?: [A-Z][a-z]+)*|\d[\d,.:]*\d|\d+)\b")
"""Not the first word of a sentence."""
_BEGINNINGS = (
    "the a an i he she it they we you in on at but and or for if when this that these there his "
    "her my our your as to of by so no not mr mrs dr st then now what who"
)
BEGINNINGS = frozenset(_BEGINNINGS.split())
"""Words that a capital letter makes no name."""
