"""What can be seen of a model in memory: where each layer is, of what type the rows of its memory
come, and the state of modules that keep no plain weight.

Knows transformers' and accelerate's models by their torch modules only. A model on several devices
was not measured: the tests stand in another device with `meta`.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from esa_cli.errors import ModelError, first_line

PLAIN = "load the model in float32, bfloat16 or float16, without quantisation"
"""What to try where weights cannot be looked at."""


def offloaded(model: Any) -> bool:
    """Whether some of its weights are not in memory: accelerate fetches them when they are used."""
    return any(tensor.is_meta for tensor in chain(model.parameters(), model.buffers()))


def check_in_memory(model: Any) -> None:
    """Raises ModelError when some of a model's weights are kept elsewhere."""
    if offloaded(model):
        raise ModelError(
            "some of this model's weights are offloaded, and esa cannot tell which model it is",
            "load it whole on a GPU or the processor, use a smaller one, or ask without a library",
        )


def devices(model: Any) -> list[torch.device]:
    """Where each layer's keys and values are made: the device of its value projection."""
    return [_device(layer.self_attn.v_proj, model.device) for layer in model.base_model.layers]


def _device(module: Any, otherwise: torch.device) -> torch.device:
    for tensor in chain(module.parameters(), module.buffers()):
        return torch.device(tensor.device)
    return otherwise


def rows_dtype(model: Any) -> torch.dtype:
    """The type of keys and values: that of the value projections' outputs.

    Raises:
        ModelError: it is not the same in all layers.
    """
    found = {_dtype(layer.self_attn.v_proj, model.dtype) for layer in model.base_model.layers}
    if len(found) > 1:
        kinds = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in found))
        raise ModelError(
            f"the layers of this model compute in different types ({kinds})",
            "load it in one with `dtype`, or ask without a library",
        )
    return found.pop()


def _dtype(module: Any, otherwise: torch.dtype) -> torch.dtype:
    """Its weight's; where that is packed, the model's, as the outputs are."""
    weight = plain_weight(module)
    return otherwise if weight is None else weight.dtype


def plain_weight(module: Any) -> Tensor | None:
    """A module's weight where its numbers stand as they are; None where they are packed."""
    weight = getattr(module, "weight", None)
    if isinstance(weight, Tensor) and weight.is_floating_point() and weight.dtype.itemsize > 1:
        return weight.detach()
    return None


def state(module: Any, known: Container[str] = ()) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor of all that a module keeps: parameters, buffers, packed weights unpacked.

    Args:
        known: names that are left out.

    Raises:
        ModelError: it keeps something else.
    """
    for name, part in module.named_modules():
        own: dict[str, Any] = {}
        # What `state_dict` is made of: all of a model's at once would unpack it a second time.
        part._save_to_state_dict(own, f"{name}." if name else "", False)
        for key in sorted(own):
            if key not in known:
                yield from _tensors(key, own[key])


def _tensors(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors in an entry of a module's state."""
    if isinstance(value, Tensor):
        yield name, (value.dequantize() if value.is_quantized else value).detach()
    elif isinstance(value, (tuple, list)):
        for i, one in enumerate(value):
            yield from _tensors(f"{name}.{i}", one)
    elif not (value is None or isinstance(value, (torch.dtype, bool, int, float, str))):
        raise ModelError(f"{name} of this model is a {type(value).__name__}, not a tensor", PLAIN)


@contextmanager
def looking_at(name: str) -> Iterator[None]:
    """Raises ModelError where torch cannot do with a weight what it does with plain numbers."""
    try:
        yield
    except (RuntimeError, TypeError, AttributeError) as error:
        message = f"{name} of this model cannot be read: {first_line(error)}"
        raise ModelError(message, PLAIN) from error
