"""Prefills a text and stores each layer's queries and keys.

As the paper prepares its training data: tokens are selected as the preset says, but by whole
queries and keys. Queries are stored as the score will use them: folded in float32, and rotated to
the far distance before where the score rotates.

A killed run refills the cache and continues. A selector's side data is then empty for the earlier
tokens; only a selector that needs it (`observe`) may select otherwise than in one run.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence

import torch
from torch import Tensor

from esa_cli.attention.compression import NoCompression
from esa_cli.attention.folding import flatten_keys, fold
from esa_cli.attention.method import Method
from esa_cli.attention.query_state import Phase, QueryState
from esa_cli.attention.trace import ChunkTrace
from esa_cli.errors import ResourceError
from esa_cli.evaluation.calibration.activation_files import Shards
from esa_cli.models.attachment.attach import Attachment
from esa_cli.models.attachment.kv_cache import EsaCache
from esa_cli.models.inspection import layer_devices
from esa_cli.qa.ingestion.prefill import feed
from esa_cli.qa.planning.model_shape import shape_of
from esa_cli.system.machine import size_text
from esa_cli.system.progress import Progress


def whole_key_method(method: Method) -> Method:
    """The method, scoring with whole keys."""
    return dataclasses.replace(method, compressor=NoCompression())


class _ActivationCollector:
    """Collects queries, keys and values of each layer during a forward call."""

    def __init__(self, attachment: Attachment) -> None:
        self.attachment, layers = attachment, len(attachment.traits)
        self.queries: list[list[Tensor]] = [[] for _ in range(layers)]
        self.keys: list[list[Tensor]] = [[] for _ in range(layers)]
        self.values: list[list[Tensor]] = [[] for _ in range(layers)]

    def __call__(self, seen: ChunkTrace) -> None:
        method, queries = self.attachment.method, seen.queries
        if method.score.rotates:
            queries = seen.rope.far_queries(queries, method.position.distance)
        keys, values = seen.store.span(seen.start, seen.stop)
        self.queries[seen.layer].append(fold(queries.float(), seen.store.heads).cpu())
        self.keys[seen.layer].append(flatten_keys(keys).cpu())
        self.values[seen.layer].append(flatten_keys(values).cpu())

    def take(self) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Queries, keys and values (n, F) of each layer since the last call."""
        taken = [[torch.cat(x) for x in kind] for kind in (self.queries, self.keys, self.values)]
        for pieces in (*self.queries, *self.keys, *self.values):
            pieces.clear()
        return taken[0], taken[1], taken[2]


def _refill(cache: EsaCache, shards: Shards, attachment: Attachment) -> None:
    """Fills the cache with the stored keys and values; see `Shards.memories`."""
    heads = shape_of(attachment.model.config.to_dict()).groups
    places = layer_devices(attachment.model)
    for layers in shards.memories():
        for layer, pair, place in zip(cache.own, layers, places, strict=True):
            keys, values = (x.view(x.shape[0], heads, -1).transpose(0, 1) for x in pair)
            layer.append(keys.to(place), values.to(place))


@torch.inference_mode()
def collect(
    attachment: Attachment, ids: Sequence[int], shards: Shards, progress: Progress | None = None
) -> None:
    """Prefills the tokens that are not stored yet, and stores their activations.

    Args:
        attachment: of a method of `whole_key_method`. ids: all tokens, the stored ones included.

    Raises:
        ResourceError: the disk is too small.
    """
    if shards.tokens < len(ids):
        _check_disk(attachment, shards, len(ids) - shards.tokens)
        cache = attachment.new_cache()
        cache.expect(len(ids))
        collector = _ActivationCollector(attachment)
        cache.begin(QueryState(Phase.PREFILL, trace=collector))
        _refill(cache, shards, attachment)

        def keep(tokens: int, total: int) -> None:
            shards.add(*collector.take())
            if progress:
                progress(tokens, total)

        feed(attachment.model, ids, cache, shards.tokens, keep)
    shards.drop_values()


def _check_disk(attachment: Attachment, shards: Shards, tokens: int) -> None:
    shape = shape_of(attachment.model.config.to_dict())
    size = torch.float32.itemsize + 2 * attachment.model.dtype.itemsize
    row = shape.layers * shape.groups * shape.dim * size
    free = shutil.disk_usage(shards.folder).free
    if row * tokens > free:
        raise ResourceError(
            f"queries, keys and values take {size_text(row * tokens)} in {shards.folder}, where "
            f"{size_text(free)} are free",
            "use fewer --tokens, or another disk with --work",
        )
