"""The choice of how an answer's tokens are computed: by forward calls, or by replaying graphs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from esa_cli.errors import UsageError
from esa_cli.models.attachment.attach import Attachment
from esa_cli.models.attachment.kv_cache import EsaCache
from esa_cli.models.decoding.cuda_graph import graphs_on
from esa_cli.models.decoding.graph_decoding import FIRST, GraphDecoding


class AnswerDecoding:
    """What decodes the answers of one attached model.

    Attributes:
        make: makes graphs; None: the device has none. outcomes: of recordings; see
            `GraphDecoding`.
    """

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment
        self.make = graphs_on(attachment.model.device)
        self.outcomes: dict[bool, bool] = {}

    @contextmanager
    def of(self, cache: EsaCache, choice: str) -> Iterator[GraphDecoding | None]:
        """For one answer, until the block ends; None: the model decodes it by forward calls.

        Args:
            cache: see `GraphDecoding`. choice: `eager`, `graph`, or `auto`: by graphs where they
                fit.

        Raises:
            UsageError: `graph` is chosen, and the device has none.
        """
        required = choice == "graph"
        if required and self.make is None:
            raise UsageError("decoding by graphs needs a CUDA device", "try --set decoding=auto")
        if choice == "eager" or self.make is None:
            yield None
            return
        first = 2 if required else FIRST
        decoding = GraphDecoding(
            self._attachment, cache, self.make, required, first=first, outcomes=self.outcomes
        )
        try:
            yield decoding
        finally:
            decoding.flush()
