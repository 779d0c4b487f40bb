"""Base classes of a method's replaceable parts: selector, score, compressor, position encoding.

A part is a frozen dataclass whose fields are settings of a preset. A part has no state of its own:
a selector keeps data in a `LayerState` (one layer) or in the turn state (all layers).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from esa_cli.attention.algebra import to_float64
from esa_cli.attention.step import LayerState, Positions, Projection, Selection, Step
from esa_cli.attention.window import SurveyComplete
from esa_cli.errors import EsaError, PluginError, first_line
from esa_cli.system.machine import is_out_of_memory_error


@dataclass
class Moments:
    """Second moments of a layer's folded queries and keys, each (F, F) and summed over tokens.

    Args:
        count: number of added tokens. seen: position after the last added token."""

    count: int = 0
    seen: int = 0
    queries: Tensor | None = field(default=None, repr=False)
    keys: Tensor | None = field(default=None, repr=False)

    def add_tokens(self, q: Tensor, k: Tensor, seen: int = 0) -> None:
        """Adds folded queries (n, F) and keys (n, F) of the tokens before position `seen`."""
        q, k = to_float64(q), to_float64(k)
        queries, keys, count = q.T @ q, k.T @ k, self.count + q.shape[0]
        if self.queries is not None and self.keys is not None:
            queries, keys = self.queries + queries, self.keys + keys
        # In one statement without calls: an interruption (Ctrl-C) changes all or nothing.
        self.queries, self.keys, self.count, self.seen = queries, keys, count, seen


def check_at_least(minimum: float, **settings: float | None) -> None:
    """Raises ValueError for a setting below `minimum`; None is allowed."""
    for name, value in settings.items():
        if value is not None and not value >= minimum:
            raise ValueError(f"{name} must be at least {minimum}, got {value}")


def check_odd(**settings: int) -> None:
    """Raises ValueError for a setting that is not an odd number of tokens."""
    for name, value in settings.items():
        if value < 1 or value % 2 == 0:
            raise ValueError(f"{name} must be odd and at least 1, got {value}")


class Score(ABC):
    """A rule that gives each middle token its importance for the current tokens, such as the
    paper's equations (3) and (4)."""

    @property
    def features(self) -> bool:
        """Whether `scores` uses reduced keys; if not, no reduced keys are computed or stored."""
        return False

    @property
    def rotates(self) -> bool:
        """Whether scores, and the fit of a compressor, use queries rotated to the far distance."""
        return False

    @property
    def last_layer(self) -> int | None:
        """Index of the last layer with scores other than 0; None stands for the last layer."""
        return None

    def for_single_layers(self) -> Score:
        """Returns this score for a selector that does not add up layers (see `sums_layers`)."""
        return self

    @abstractmethod
    def scores(self, step: Step) -> Tensor:
        """Returns the scores (M,) of the middle tokens. Tokens with the highest scores are selected
        first, and tokens with the score -inf only if no other tokens are left."""


class Selector(ABC):
    """A rule that selects the middle tokens that a chunk attends to."""

    @property
    def sums_layers(self) -> bool:
        """Whether the selector adds up layers' scores; only then may a score leave layers out."""
        return False

    @property
    def surveys(self) -> bool:
        """Whether each question passes through the model twice, first only for scores."""
        return False

    @property
    def observes(self) -> bool:
        """Whether `observe` is called, which is so when a class overrides the method."""
        return type(self).observe is not Selector.observe

    @property
    def window_size(self) -> int:
        """Number of tokens in the windows that are selected; 0 stands for single tokens."""
        return 0

    def allowance(self, step: Step, budget: int) -> int:
        """Returns the number of tokens that may be selected in this step in place of `budget`."""
        return budget

    @abstractmethod
    def select(self, step: Step, budget: int) -> Selection:
        """Returns ascending, unique int64 offsets into M, at most min(budget, M) for each head."""

    def observe(self, step: Step) -> None:
        """Does nothing; called after attention to every chunk, with `step.lse` set."""
        return

    def new_layer_state(self) -> LayerState | None:
        """Returns a new state of one layer, which `step.layer_state(self)` then returns."""
        return None

    def new_turn_state(self) -> Any:
        """Returns a new state of a turn, which `step.turn_state(self)` returns in all layers."""
        return None

    def survey_complete(self, step: Step) -> bool:
        """Whether the survey pass may end after the layer of this step."""
        return False

    def after_survey(self, turn: Any) -> Any:
        """Returns the turn state for the second pass, from the turn state of the survey pass."""
        return self.new_turn_state()


class Compressor(ABC):
    """A rule that makes the projection of each layer (equation (5)), from a file or from the first
    tokens of a document."""

    fit_tokens: int = 0
    """Number of the document's first tokens whose moments `fit` needs."""

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the files that the compressor loads; their hashes are part of the cache key."""
        return ()

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of the compressor's file about the model that the file was made for."""
        return {}

    def stored_rank(self, folded: int) -> int:
        """Returns R, the most numbers stored for a token with F = `folded`, before any fit."""
        return folded

    @abstractmethod
    def fit(self, layer: int, moments: Moments) -> Projection | None:
        """Returns the projection of `layer`, or None to score with whole folded keys."""


class PositionEncoding(ABC):
    """A rule for the positions at which current, local and far tokens are rotated (Section 3.2)."""

    distance: int
    """Query position, with keys at 0, at which far tokens are scored when a score rotates."""

    @property
    def max_distance(self) -> int | None:
        """Maximum distance of near tokens; tokens further away are placed at this distance."""
        return None

    def query_scale(self, at: Tensor) -> Tensor | None:
        """Returns factors (C,) of queries at absolute positions `at` (C,); None stands for 1."""
        return None

    def frequencies(
        self, inverse: Tensor, factor: float, length: int
    ) -> tuple[Tensor, float] | None:
        """Returns rotary frequencies (D / 2,) in radians per token, and the factor of cosines and
        sines, for `length` cached tokens. None keeps the model's own frequencies."""
        return None

    @abstractmethod
    def near(self, local: int, chunk: int, start: int, far: int) -> Positions:
        """Returns the positions for attention to `local` local tokens and `chunk` current tokens.
        The current tokens begin at absolute position `start`, after `far` far tokens."""

    @abstractmethod
    def far(self, at: Tensor, local: int, chunk: int, start: int) -> Positions:
        """Returns positions for attention to far tokens at ascending absolute positions (n,)."""


def is_builtin(part: object) -> bool:
    """Whether the class of a method's part belongs to this package and not to a plugin."""
    return type(part).__module__.startswith("esa_cli.")


def check_offsets(offsets: Selection, step: Step, budget: int) -> None:
    """Raises ValueError for selected offsets outside the middle tokens or beyond the budget."""
    limit = min(budget, step.middle)
    for row in [offsets] if isinstance(offsets, Tensor) else offsets:
        inside = not row.numel() or (int(row[0]) >= 0 and int(row[-1]) < step.middle)
        if row.shape[0] > limit or not inside or bool((row.diff() <= 0).any()):
            raise ValueError(f"must select ascending offsets below {step.middle}, at most {limit}")


@contextmanager
def blame_plugins(parts: Mapping[str, object]) -> Iterator[None]:
    """Turns an exception into a PluginError that names the plugins among `parts` by their kind."""
    try:
        yield
    except (EsaError, SurveyComplete):
        raise
    except Exception as error:
        bases = (Selector, Score, Compressor, PositionEncoding)
        plugins = [
            f"{kind} {type(part).__name__}"
            for kind, part in parts.items()
            if isinstance(part, bases) and not is_builtin(part)
        ]
        if not plugins or is_out_of_memory_error(error):
            raise
        raise PluginError(
            f"{' or '.join(plugins)} fails: {type(error).__name__}: {first_line(error)}",
            "run `esa plugins check FILE` for details",
        ) from error
