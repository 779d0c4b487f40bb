"""A question's generation settings: those that are given, else the preset's."""

from __future__ import annotations

from esa_cli.errors import UsageError
from esa_cli.qa.presets.preset import TEMPERATURES, Generation, valid_temperature


def chosen_generation(
    settings: Generation, most: int | None, temperature: float | None, top_p: float | None
) -> tuple[int, float, float]:
    """Longest answer, temperature and top_p, those of `settings` for None. Raises UsageError."""
    tokens = longest_answer(settings, most)
    heat = settings.temperature if temperature is None else temperature
    nucleus = settings.top_p if top_p is None else top_p
    if not valid_temperature(heat) or not 0 < nucleus <= 1:
        raise UsageError(
            f"temperature must be {TEMPERATURES}, top_p in (0, 1], got {heat} and {nucleus}",
            "leave both out for the preset's",
        )
    return tokens, heat, nucleus


def longest_answer(settings: Generation, most: int | None) -> int:
    """Longest answer in tokens. Raises UsageError for less than one."""
    most = settings.max_new_tokens if most is None else most
    if most < 1:
        raise UsageError(f"max_new_tokens must be at least 1, got {most}", "leave it out")
    return most
