"""A whole method: window sizes and one of each replaceable part."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from esa_cli.attention.compression import ClosedForm
from esa_cli.attention.parts import Compressor, PositionEncoding, Score, Selector
from esa_cli.attention.positions import FixedDistance
from esa_cli.attention.selection import SumScore, TopK
from esa_cli.attention.window import Window


@dataclass(frozen=True)
class Method:
    """Selective attention, fully specified.

    Args:
        reading: how a document's chunks attend during prefill: `select`, the paper's (selection in
            every chunk), or `local`, to I and L only. Questions and answers always select.
        kernel: of attention: its name, or `auto`; see `kernels.choose`.
    """

    window: Window = field(default_factory=Window)
    selector: Selector = field(default_factory=TopK)
    score: Score = field(default_factory=SumScore)
    compressor: Compressor = field(default_factory=ClosedForm)
    position: PositionEncoding = field(default_factory=FixedDistance)
    reading: Literal["select", "local"] = "select"
    kernel: str = "auto"

    @property
    def fitting(self) -> tuple[Compressor, int | None]:
        """The settings that determine a prefill's reduced keys: the compressor and, where it is
        fitted to rotated queries, their distance."""
        rotated = self.compressor.fit_tokens > 0 and self.score.rotates
        return self.compressor, self.position.distance if rotated else None
