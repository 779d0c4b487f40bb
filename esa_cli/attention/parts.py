"""Base classes of a method's replaceable parts: selector, score, compressor, position encoding.

A part of a method is a frozen dataclass, whose fields are settings of a preset. A part stores no
data: a selector stores data in a `LayerState` (one layer) or in the turn state (all layers).
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
from esa_cli.errors import EsaError, PluginError, get_first_line
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
        """Adds folded queries (n, F) and keys (n, F) of the n tokens before position `seen`."""
        q, k = to_float64(q), to_float64(k)
        queries, keys, count = q.T @ q, k.T @ k, self.count + q.shape[0]
        if self.queries is not None and self.keys is not None:
            queries, keys = self.queries + queries, self.keys + keys
        # In one statement without calls: an interruption (Ctrl-C) changes all or nothing.
        self.queries, self.keys, self.count, self.seen = queries, keys, count, seen


def check_minimum(minimum: float, **settings: float | None) -> None:
    """Raises ValueError for a setting below the minimum; a setting may be None."""
    for name, value in settings.items():
        if value is not None and not value >= minimum:
            raise ValueError(f"{name} must be at least {minimum}, got {value}")


def require_odd(**settings: int) -> None:
    """Raises ValueError for a setting that is not an odd number of tokens."""
    for name, value in settings.items():
        if value < 1 or value % 2 == 0:
            raise ValueError(f"{name} must be odd and at least 1, got {value}")


class Score(ABC):
    """A rule that gives each middle token a number, its importance for the current tokens, such as
    equations (3) and (4) of the ESA paper."""

    @property
    def features(self) -> bool:
        """Whether the score uses reduced keys; if not, no reduced keys are computed or stored."""
        return False

    @property
    def rotates(self) -> bool:
        """Whether the score, and a compressor's fit, use queries rotated to the far distance."""
        return False

    @property
    def last_layer(self) -> int | None:
        """Index of the last layer with scores other than 0; None stands for the last layer."""
        return None

    def for_single_layers(self) -> Score:
        """Returns the score for a selector that does not add up the scores of layers."""
        return self

    @abstractmethod
    def scores(self, step: Step) -> Tensor:
        """Returns the scores (M,) of the middle tokens. Tokens with the highest scores are selected
        first, and tokens with the score -inf only if no other tokens are left."""


class Selector(ABC):
    """A rule that selects the middle tokens to which a chunk attends."""

    @property
    def sums_layers(self) -> bool:
        """Whether the selector adds up layers' scores, so that a score may leave layers out."""
        return False

    @property
    def surveys(self) -> bool:
        """Whether each question passes through the model twice, the first time only for scores."""
        return False

    @property
    def observes(self) -> bool:
        """Whether the class overrides `observe`, which otherwise is not called."""
        return type(self).observe is not Selector.observe

    @property
    def window_size(self) -> int:
        """Number of tokens in each selected window; 0 stands for selection of single tokens."""
        return 0

    def allowance(self, step: Step, budget: int) -> int:
        """Returns the number of tokens that may be selected in this step, such as `budget`."""
        return budget

    @abstractmethod
    def select(self, step: Step, budget: int) -> Selection:
        """Returns ascending, unique int64 offsets into M, at most min(budget, M) for each head."""

    def observe(self, step: Step) -> None:
        """Does nothing; an override is called after every chunk's attention, with `lse`."""
        return

    def new_layer_state(self) -> LayerState | None:
        """Returns a new state of one layer, which `step.layer_state(self)` will return."""
        return None

    def new_turn_state(self) -> Any:
        """Returns a new state of a question with its answer, for `step.turn_state(self)`."""
        return None

    def survey_complete(self, step: Step) -> bool:
        """Whether a question's first pass, for scores, may end after the layer of this step."""
        return False

    def after_survey(self, turn: Any) -> Any:
        """Returns the turn state for a question's second pass, given that of the first pass."""
        return self.new_turn_state()


class Compressor(ABC):
    """A rule that makes each layer's projection of queries and keys to fewer dimensions (equation
    (5)), from a file or from the first tokens of a document."""

    fit_tokens: int = 0
    """Number of the document's first tokens whose moments `fit` needs."""

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the files that the compressor loads; a cache key has hashes of the files."""
        return ()

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of the compressor's file, which tell for which model the file was made."""
        return {}

    def stored_rank(self, folded: int) -> int:
        """Returns R, the largest number of reduced dimensions, for keys of `folded` dimensions."""
        return folded

    @abstractmethod
    def fit(self, layer: int, moments: Moments) -> Projection | None:
        """Returns a layer's projection, or None to score with whole folded keys."""


class PositionEncoding(ABC):
    """A rule for the positions at which current, local and far tokens are rotated (Section 3.2)."""

    distance: int
    """Query position, with keys at 0, at which far tokens are scored when a score rotates."""

    @property
    def max_distance(self) -> int | None:
        """Distance at which near tokens beyond this distance are placed; None: no such limit."""
        return None

    def query_scale(self, at: Tensor) -> Tensor | None:
        """Returns factors (C,) for queries at absolute positions `at` (C,); None stands for 1."""
        return None

    def frequencies(
        self, inverse: Tensor, factor: float, length: int
    ) -> tuple[Tensor, float] | None:
        """Returns rotary frequencies (D / 2,) in radians per token, and the factor of cosines and
        sines, for `length` cached tokens. None stands for the model's frequencies."""
        return None

    @abstractmethod
    def near(self, local: int, chunk: int, start: int, far: int) -> Positions:
        """Returns the positions for attention to `local` local tokens and `chunk` current tokens,
        which begin at absolute position `start`; the chunk attends to `far` far tokens, too."""

    @abstractmethod
    def far(self, at: Tensor, local: int, chunk: int, start: int) -> Positions:
        """Returns positions for attention to far tokens at ascending absolute positions (n,)."""


def is_builtin_part(part: object) -> bool:
    """Whether the class of a method's part belongs to `esa_cli` and not to a plugin."""
    return type(part).__module__.startswith("esa_cli.")


def check_selected_offsets(offsets: Selection, step: Step, budget: int) -> None:
    """Raises ValueError if selected offsets exceed the middle tokens or the budget."""
    limit = min(budget, step.middle)
    for row in [offsets] if isinstance(offsets, Tensor) else offsets:
        inside = not row.numel() or (int(row[0]) >= 0 and int(row[-1]) < step.middle)
        if row.shape[0] > limit or not inside or bool((row.diff() <= 0).any()):
            raise ValueError(f"must select ascending offsets below {step.middle}, at most {limit}")


@contextmanager
def name_faulty_plugins(parts: Mapping[str, object]) -> Iterator[None]:
    """Converts an exception in a method's parts to a PluginError that names the plugins."""
    try:
        yield
    except (EsaError, SurveyComplete):
        raise
    except Exception as error:
        bases = (Selector, Score, Compressor, PositionEncoding)
        plugins = [
            f"{kind} {type(part).__name__}"
            for kind, part in parts.items()
            if isinstance(part, bases) and not is_builtin_part(part)
        ]
        if not plugins or is_out_of_memory_error(error):
            raise
        raise PluginError(
            f"{' or '.join(plugins)} fails: {type(error).__name__}: {get_first_line(error)}",
            "run `esa plugins check FILE` for details",
        ) from error
