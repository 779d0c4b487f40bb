"""Inspection of a loaded model: attention modules, type of keys and values, weights.

It reads transformers' models through their torch modules only.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from esa_cli.errors import ModelError, first_line
from esa_cli.models.files.families import family_of, source_layers
from esa_cli.models.text_passes.small_decoder import is_plain

LOADED_PLAIN = "load the model in float32, bfloat16 or float16, without quantisation"
"""A hint for weights that cannot be read."""
_ATTENTION = ("self_attn", "mixer", "attention")
"""What layers name their attention."""


def attention_modules(model: Any) -> list[Any | None]:
    """The attention modules, in the order in which they run: one in each layer, or several; None:
    the layer has none."""
    name, modules = family_of(model.config).projections[-1], list[Any | None]()
    readers = source_layers(model.config)
    for layer in model.base_model.layers:
        own = next((getattr(layer, one) for one in _ATTENTION if hasattr(layer, one)), None)
        for module in own if isinstance(own, nn.ModuleList) else [own]:
            attends = hasattr(module, name) or len(modules) in readers
            modules.append(module if attends else None)
    return modules


def row_layers(model: Any) -> list[int]:
    """Indices of the layers that keep keys and values."""
    readers = source_layers(model.config)
    modules = enumerate(attention_modules(model))
    return [i for i, module in modules if module is not None and i not in readers]


def projections(model: Any) -> list[list[Any]]:
    """The modules that make queries, keys and values, in this order, or all of them in one module:
    of each layer that keeps keys."""
    names, modules = family_of(model.config).projections, attention_modules(model)
    layers = [[getattr(modules[i], name, None) for name in names] for i in row_layers(model)]
    return [[part for part in parts if part is not None] for parts in layers]


def kv_dtype(model: Any) -> torch.dtype:
    """The type of keys and values: that of the value projections, or the model's where these are
    quantised. Raises ModelError: it is not the same in all layers."""
    weights = [plain_weight(part[-1]) for part in projections(model)]
    types = {model.dtype if weight is None else weight.dtype for weight in weights}
    if len(types) > 1:
        kinds = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in types))
        raise ModelError(
            f"the layers of this model compute in different types ({kinds})",
            "load it in one with `dtype`, or ask without a library",
        )
    return types.pop()


def plain_weight(module: Any) -> Tensor | None:
    """A module's weight if it is a plain floating-point tensor, else None."""
    weight = getattr(module, "weight", None)
    return weight.detach() if isinstance(weight, Tensor) and is_plain(weight) else None


def weight_tensors(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor of each plain parameter, then of all else in the model's state. Quantised
    weights are flat: bitsandbytes changes their shape when they are first used. Raises ModelError,
    as `state_tensors`."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    plain = {name for name, weight in parameters.items() if is_plain(weight)}
    yield from ((name, weight) for name, weight in model.named_parameters() if name in plain)
    for name, tensor in state_tensors(model, plain):
        yield name, tensor.reshape(-1) if name in parameters else tensor


def state_tensors(module: Any, known: Container[str] = ()) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor of each parameter, buffer and dequantised weight of a module, but for the
    names that are `known`. Raises ModelError: its state has something other than tensors."""
    for name, part in module.named_modules():
        state = _module_state(part, f"{name}." if name else "")
        for key in sorted(state):
            if key not in known:
                yield from _tensors(key, state[key])


def _module_state(part: Any, prefix: str) -> dict[str, Any]:
    """A module's entries of `state_dict`, which on a whole model would dequantise it twice."""
    state: dict[str, Any] = {}
    packing = getattr(getattr(part, "weight", None), "quant_state", None)
    if packing is None:
        part._save_to_state_dict(state, prefix, False)
        return state
    # That method of bitsandbytes 0.50 spoils the scales of weights that a CPU has used.
    state |= {f"{prefix}{name}": one for name, one in part.named_parameters(recurse=False)}
    for at, inner in (("", packing), (".state2", getattr(packing, "state2", None))):
        for key, value in vars(inner).items() if inner is not None else ():
            if isinstance(value, Tensor):
                state[f"{prefix}weight.quant_state{at}.{key}"] = value
    return state


def _tensors(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors in an entry of a module's state."""
    if isinstance(value, Tensor) and hasattr(value, "__tensor_flatten__"):
        for inner in value.__tensor_flatten__()[0]:
            yield from _tensors(f"{name}.{inner}", getattr(value, inner))
    elif isinstance(value, Tensor):
        yield name, (value.dequantize() if value.is_quantized else value).detach()
    elif isinstance(value, (tuple, list)):
        for i, one in enumerate(value):
            yield from _tensors(f"{name}.{i}", one)
    elif not (value is None or isinstance(value, (torch.dtype, bool, int, float, str))):
        raise ModelError(
            f"{name} of this model must be a tensor, got {type(value).__name__}", LOADED_PLAIN
        )


@contextmanager
def weight_errors(name: str) -> Iterator[None]:
    """Raises ModelError where torch cannot process a weight as plain numbers."""
    try:
        yield
    except (RuntimeError, TypeError, AttributeError) as error:
        message = f"{name} of this model cannot be read: {first_line(error)}"
        raise ModelError(message, LOADED_PLAIN) from error
