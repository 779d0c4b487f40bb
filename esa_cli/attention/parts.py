"""Base classes of selectors, scores, compressors and position encodings, which make up a method.

Classes derived from these base classes are frozen dataclasses, whose fields a preset sets. A
selector keeps data in a `LayerState` for each layer, and in a state for each question."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from esa_cli.attention.algebra import to_float64
from esa_cli.attention.step import LayerState, Positions, Projection, Selection, Step
from esa_cli.attention.window import SurveyPassComplete
from esa_cli.errors import NOT_BLAMED, EsaError, PluginError, get_first_line
from esa_cli.system.machine import is_out_of_memory_error


@dataclass
class Moments:
    """Sums over a layer's tokens of q q^T and k k^T, each (F, F), for folded queries and keys."""

    count: int = 0  # of added tokens
    seen: int = 0  # position after the last added token
    queries: Tensor | None = field(default=None, repr=False)
    keys: Tensor | None = field(default=None, repr=False)

    def add_tokens(self, q: Tensor, k: Tensor, end_position: int = 0) -> None:
        """Adds the folded queries q and keys k (n, F) of n tokens to the sums."""
        q, k = to_float64(q), to_float64(k)
        queries, keys, count = q.T @ q, k.T @ k, self.count + q.shape[0]
        if self.queries is not None and self.keys is not None:
            queries, keys = self.queries + queries, self.keys + keys
        # In one statement without calls: an interruption (Ctrl-C) changes all or nothing.
        self.queries, self.keys, self.count, self.seen = queries, keys, count, end_position


def require_at_least(minimum: float, **settings: float | None) -> None:
    """Raises ValueError for a setting below the minimum; a setting may be None."""
    for name, value in settings.items():
        if value is not None and not value >= minimum:
            raise ValueError(f"{name} must be at least {minimum}, got {value}")


class Score(ABC):
    """Base class of rules that score each middle token for a chunk, as equations (3) and (4) do."""

    @property
    def features(self) -> bool:
        """Whether the score uses keys of reduced dimension, which otherwise are not computed."""
        return False

    @property
    def rotates(self) -> bool:
        """Whether scores and the compressor's fit use queries that RoPE has rotated."""
        return False

    @property
    def last_layer(self) -> int | None:
        """Index of the last layer with nonzero scores; None stands for the model's last layer."""
        return None

    def for_single_layers(self) -> Score:
        """Returns the variant of the score for selectors that do not sum scores over layers."""
        return self

    @abstractmethod
    def scores(self, step: Step) -> Tensor:
        """Returns the scores (M,) of the M middle tokens; selectors prefer higher scores."""


class Selector(ABC):
    """Base class of rules that select the middle tokens of the KV cache that a chunk attends to."""

    sums_layers: bool = False
    """Whether the selector sums scores over layers, so that a score may be 0 in some layers."""

    @property
    def surveys(self) -> bool:
        """Whether the model processes each question twice, the first time only to score tokens."""
        return False

    @property
    def is_observer(self) -> bool:
        """Whether the class overrides `observe`, which otherwise is not called."""
        return type(self).observe is not Selector.observe

    @property
    def window_size(self) -> int:
        """Number of tokens in each window that is selected; 0 if single tokens are selected."""
        return 0

    def allowance(self, step: Step, budget: int) -> int:
        """Returns how many middle tokens may be selected in a step; by default `budget`."""
        return budget

    @abstractmethod
    def select(self, step: Step, budget: int) -> Selection:
        """Returns the selected tokens as ascending, unique int64 offsets into the M middle tokens,
        at most min(budget, M) for each head."""

    def observe(self, step: Step) -> None:
        """Is called after every chunk's attention, whose log-sum-exp is in `step.lse`."""
        return

    def new_layer_state(self) -> LayerState | None:
        """Returns an empty state of the selector for one layer, or None if no state is needed."""
        return None

    def new_turn_state(self) -> Any:
        """Returns an empty state of the selector for one question and its answer, or None."""
        return None

    def survey_complete(self, step: Step) -> bool:
        """Whether the scoring pass of a question may end after the layer of `step`."""
        return False

    def start_turn_after_survey(self, turn: Any) -> Any:
        """Converts the selector's state of a question's first pass to that of the second pass."""
        return self.new_turn_state()


class Compressor(ABC):
    """Base class of rules that load or fit a layer's projection, as in equation (5)."""

    fit_tokens: int = 0
    """Number of the document's first tokens whose moments `fit` needs."""

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the files that the compressor loads."""
        return ()

    @property
    def metadata(self) -> dict[str, str]:
        """Metadata of the compressor's file, such as the model for which the file was made."""
        return {}

    def stored_rank(self, folded: int) -> int:
        """Returns the largest dimension to which keys of `folded` dimensions are reduced."""
        return folded

    @abstractmethod
    def fit(self, layer: int, moments: Moments) -> Projection | None:
        """Returns a layer's projection fitted to `moments`, or None if whole keys are used."""


class PositionEncoding(ABC):
    """Base class of rules that choose the rotary positions of queries and keys."""

    distance: int
    """Query position, with keys at 0, at which far tokens are scored when a score rotates."""

    @property
    def max_distance(self) -> int | None:
        """Distance at which farther near tokens are placed; None stands for no limit."""
        return None

    def query_scale(self, at: Tensor) -> Tensor | None:
        """Returns factors (C,) that scale queries at positions `at` (C,); None for no scaling."""
        return None

    def frequencies(
        self, inverse: Tensor, factor: float, length: int
    ) -> tuple[Tensor, float] | None:
        """Returns rotary frequencies (D / 2,) in radians per token, and the factor of cosines and
        sines, for `length` cached tokens; None keeps those of the model."""
        return None

    @abstractmethod
    def near(self, local: int, chunk: int, start: int, far: int) -> Positions:
        """Returns the rotary positions of `chunk` queries, the first at absolute position `start`,
        and of `local` + `chunk` near keys, where the chunk also attends to `far` far tokens."""

    @abstractmethod
    def far(self, at: Tensor, local: int, chunk: int, start: int) -> Positions:
        """Returns rotary positions of a chunk's queries and of the far keys at positions `at`."""


def is_builtin_part(method_part: object) -> bool:
    """Whether a selector, score or other part is built into `esa_cli`, not from a plugin."""
    return type(method_part).__module__.startswith("esa_cli.")


def check_selected_offsets(offsets: Selection, step: Step, budget: int) -> None:
    """Raises ValueError if selected offsets exceed the middle tokens or the budget."""
    limit = min(budget, step.middle)
    for row in [offsets] if isinstance(offsets, Tensor) else offsets:
        inside = not row.numel() or (int(row[0]) >= 0 and int(row[-1]) < step.middle)
        if row.shape[0] > limit or not inside or bool((row.diff() <= 0).any()):
            raise ValueError(f"must select ascending offsets below {step.middle}, at most {limit}")


@contextmanager
def report_plugin_errors(method_parts: Mapping[str, object]) -> Iterator[None]:
    """Converts an exception in a plugin's code to a PluginError that names the plugin."""
    try:
        yield
    except (EsaError, SurveyPassComplete, *NOT_BLAMED):
        raise
    except BaseException as error:  # even SystemExit, which would end without an answer
        bases = (Selector, Score, Compressor, PositionEncoding)
        plugins = [
            f"{kind} {type(part).__name__}"
            for kind, part in method_parts.items()
            if isinstance(part, bases) and not is_builtin_part(part)
        ]
        if not plugins or is_out_of_memory_error(error):
            raise
        message = f"{' or '.join(plugins)} fails: {type(error).__name__}: {get_first_line(error)}"
        hint = "run `esa plugins check FILE`, which says what in a plugin fails"
        raise PluginError(message, hint) from error
