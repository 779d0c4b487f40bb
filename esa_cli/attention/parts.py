"""Base classes of the replaceable parts of a method: selector, score, compressor, positions.

A part is a frozen dataclass derived from one of these; its fields are the settings of a preset. A
part keeps nothing between calls: what a selector has to remember lies in `LayerState` (one layer)
or in the turn's `QueryState` (all layers).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from esa_cli.attention.interfaces import LayerState, Positions, Projection, Selection
from esa_cli.attention.moments import Moments
from esa_cli.attention.step import Step


class Score(ABC):
    """Importance F_s(m; C) of each middle token: Eq. (3)-(4), or another rule."""

    @property
    def features(self) -> bool:
        """Whether `scores` reads reduced keys; when False none are computed or stored."""
        return False

    @property
    def rotates(self) -> bool:
        """Whether queries are rotated to the far distance before they are scored: a compressor is
        then fitted to rotated queries."""
        return False

    @property
    def last_layer(self) -> int | None:
        """The last layer in which any score is not 0; None: the model's last."""
        return None

    def for_single_layers(self) -> Score:
        """This score for a selector that does not add up the layers' scores (`sums_layers`)."""
        return self

    @abstractmethod
    def scores(self, step: Step) -> Tensor:
        """(M,) float; higher is selected first. -inf: only when nothing else is left."""


class Selector(ABC):
    """Which middle tokens a chunk attends to."""

    @property
    def sums_layers(self) -> bool:
        """Whether it adds up the scores of the layers; only then may a score leave layers out."""
        return False

    @property
    def surveys(self) -> bool:
        """Whether the session passes each question through the model twice, the first time (the
        survey pass) for this selector alone."""
        return False

    @property
    def observes(self) -> bool:
        """Whether `observe` is called: when a class overrides it."""
        return type(self).observe is not Selector.observe

    @property
    def window_size(self) -> int:
        """Tokens of the windows it selects; 0: single tokens."""
        return 0

    def allowance(self, step: Step, budget: int) -> int:
        """How many tokens this step may take in place of `budget`, for methods whose first
        layers, or all, attend to everything."""
        return budget

    @abstractmethod
    def select(self, step: Step, budget: int) -> Selection:
        """int64 offsets into M: ascending, unique, at most min(budget, M) of them for a head."""

    def observe(self, step: Step) -> None:
        """Called for every chunk after it was attended to; `step.lse` is there."""
        return

    def new_layer_state(self) -> LayerState | None:
        """What it keeps of one layer's tokens, empty; `step.layer_state(self)` gives it back."""
        return None

    def new_turn_state(self) -> Any:
        """What it keeps across layers in one turn, empty; `step.turn_state(self)` gives it back."""
        return None

    def survey_complete(self, step: Step) -> bool:
        """Whether the survey pass may end after this step's layer."""
        return False

    def after_survey(self, turn: Any) -> Any:
        """The turn state with which the second pass starts, from that of the survey pass."""
        return self.new_turn_state()


class Compressor(ABC):
    """Where a layer's projection, Eq. (5), comes from: a file, or the document's first tokens."""

    fit_tokens: int = 0
    """Tokens of the document to look at before `fit`; 0 when it needs none."""

    @property
    def files(self) -> tuple[str, ...]:
        """Files it reads, for the hashes that tell whether one changed."""
        return ()

    @property
    def metadata(self) -> dict[str, str]:
        """What its file says of the model it was made for."""
        return {}

    def stored_rank(self, folded: int) -> int:
        """R as far as it is known before a fit: numbers kept for a token with F = `folded`."""
        return folded

    @abstractmethod
    def fit(self, layer: int, moments: Moments) -> Projection | None:
        """The projection of `layer`, or None to score with the whole folded keys."""


class PositionEncoding(ABC):
    """Positions of the current, local and far tokens (Section 3.2)."""

    distance: int
    """Query position, keys at 0, that stands for 'far' when tokens are scored rotated."""

    @property
    def max_distance(self) -> int | None:
        """Near tokens further away than this are attended to at exactly this distance."""
        return None

    def query_scale(self, at: Tensor) -> Tensor | None:
        """(C,) factors of the queries at absolute positions `at` (C,); None: 1."""
        return None

    def frequencies(
        self, inverse: Tensor, factor: float, length: int
    ) -> tuple[Tensor, float] | None:
        """Rotary frequencies (D / 2,), radians per token, and the factor of cosines and sines that
        replace the host's when `length` tokens are cached; None: the host's."""
        return None

    @abstractmethod
    def near(self, local: int, chunk: int, start: int, far: int) -> Positions:
        """Positions for attention to [L, C].

        Args:
            local, chunk: tokens in L and C. start: absolute position of the first current token.
            far: how many far tokens are attended to in the same step.
        """

    @abstractmethod
    def far(self, at: Tensor, local: int, chunk: int, start: int) -> Positions:
        """Positions for attention to the far tokens at ascending absolute positions (n,)."""
