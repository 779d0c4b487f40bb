"""Fixtures of the tests of commands."""

from cli_fixtures import cache, esa, finder, note, surroundings

__all__ = ["cache", "esa", "finder", "note", "surroundings"]
