"""What the parser of the command line refused, in the form of our own messages.

typer words it differently in its versions: by pydantic, and before that by click.
"""

from __future__ import annotations

import re
from typing import Any

_REFUSED = re.compile(r"Invalid value for (?:'(?P<names>.+?)'|\S+): (?P<why>.*)", re.DOTALL)
_BOUND = re.compile(r"Input should be (less|greater) than or equal to (\S+)")
_RANGE = re.compile(r"(?P<got>\S+) is not in the range (?P<range>\S+)")
_CHOICE = re.compile(r"(?:Value error, )?'(?P<got>.*)' is not one of (?P<known>.*)", re.DOTALL)
_NUMBERS = {
    re.compile(r"Input should be a valid integer.*|'(?P<got>.*)' is not a valid int.*"): "a whole ",
    re.compile(r"Input should be a valid number.*|'(?P<got>.*)' is not a valid float.*"): "a ",
}


def parser_message(error: Any) -> tuple[str, str]:
    """Message and hint of an error of the parser."""
    context = getattr(error, "ctx", None)
    hint = f"see `{context.command_path if context else 'esa'} --help`"
    text = str(error.format_message()).rstrip(".")
    refused = _REFUSED.fullmatch(text)
    if refused is None or refused["names"] is None:
        return text[:1].lower() + text[1:], hint
    name = max(refused["names"].split("' / '"), key=len)
    must, bound = _constraint(refused["why"], _given(error))
    if not must:
        return text[:1].lower() + text[1:], hint
    return f"{name} must be {must}", f"use {name} {bound}" if bound else hint


def _constraint(why: str, given: str) -> tuple[str, str]:
    """What a value must be and what was given, and the value to use, or ""; both "": not known."""
    if found := _BOUND.fullmatch(why):
        return f"{'at most' if found[1] == 'less' else 'at least'} {found[2]}{given}", found[2]
    if found := _RANGE.fullmatch(why):
        return f"in the range {found['range']}, got {found['got']}", ""
    if found := _CHOICE.fullmatch(why):
        return f"one of {found['known'].replace(chr(39), '')}, got {found['got']}", ""
    for pattern, kind in _NUMBERS.items():
        if found := pattern.fullmatch(why):
            return f"{kind}number" + (given or f", got {found['got']}"), ""
    return "", ""


def _given(error: Any) -> str:
    """`, got VALUE` where pydantic says what it got."""
    details = getattr(error.__cause__, "errors", None)
    return f", got {details()[0]['input']}" if details else ""
