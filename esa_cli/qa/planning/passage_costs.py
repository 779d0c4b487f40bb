"""The cost of passages that are found by their words: no document is read by the model."""

from __future__ import annotations

from esa_cli.qa.planning.costs import TOKEN_BYTES, Costs


class PassageCosts(Costs):
    """The cost of reading one prompt at a time, whatever the documents' length."""

    def keys_values(self, tokens: int, size: int) -> int:
        return 0

    def reduced_keys(self, tokens: int, size: int) -> int:
        return 0

    def working(self, tokens: int, size: int) -> int:
        return super().working(0, size) + tokens * TOKEN_BYTES

    def operations(self, tokens: int) -> float:
        return 0.0
