"""Rotary embedding of models that norm queries and keys after rotating them (Hunyuan).

Such a model's query is w_q * R(q) / rms(q), its key w_k * R(k) / rms(k), with learned weights w of
each dimension. rms is that of the rotated vector as of the unrotated one, so with q' and k' the
normed ones before w,

    query . key = sum of w_q w_k R(q') R(k') = (s * R(q')) . (s * R(k')), s = sqrt(w_q w_k)

The attached model does not rotate, and caches w_k * k'.
"""

from __future__ import annotations

from torch import Tensor

from esa_cli.attention.rope import Rope
from esa_cli.errors import ModelError


class WeightedRope(Rope):
    """R(x) = s * R(x / w_k), of cached keys and of queries that `as_key` made alike.

    Args:
        plain: the rotary embedding itself. query, key: w_q and w_k (D,).

    Raises:
        ModelError: a weight is 0, or those of a query and a key differ in their sign.
    """

    def __init__(self, plain: Rope, query: Tensor, key: Tensor) -> None:
        super().__init__(plain.module, plain.spare, plain.pairs)
        query, key = query.detach(), key.detach()
        product = query.float() * key.float()
        if not bool((product > 0).all()):
            raise ModelError(
                "the weights of queries and keys behind their rotation must be other than 0 and of "
                "the same sign",
                "use another model",
            )
        self._plain, self._query, self._key = plain, query, key
        self._before, self._after = 1 / key.float(), product.sqrt()

    def changed(self, inverse: Tensor, factor: float, spare: bool) -> Rope:
        return WeightedRope(self._plain.changed(inverse, factor, spare), self._query, self._key)

    def cos_sin(self, positions: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        return self._plain.cos_sin(positions, like.float())

    def angles(self, positions: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        return self._plain.angles(positions, like.float())

    def as_key(self, q: Tensor) -> Tensor:
        return q * (self._key / self._query).to(q)

    def gain(self, like: Tensor) -> Tensor:
        return self._plain.gain(like) * (self._before * self._after).to(like)

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        turned = self._plain.turn(x.float() * self._before.to(x.device), cos, sin)
        return (turned * self._after.to(x.device)).to(x.dtype)
