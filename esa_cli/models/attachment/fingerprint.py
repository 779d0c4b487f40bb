"""Computes fingerprints of models, by which a compressor file is checked to fit a model.

A model's fingerprint has the numbers of layers and heads, and a sha256 over the signs of the query
and key weights in the first and last layer. Rounding to another number type preserves the signs of
weights, and training changes thousands of signs. A quantised model has another fingerprint, which
hashes all bytes of the quantised weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from esa_cli.errors import ModelError, PresetError
from esa_cli.models.attachment.layer_traits import get_unquantised_weight, list_qkv_projections
from esa_cli.models.files.checkpoint_files import convert_read_errors
from esa_cli.models.files.families import get_kv_head_shape
from esa_cli.models.text_passes.text_forward import is_unquantised_weight

if TYPE_CHECKING:
    from esa_cli.attention.method import Method
    from esa_cli.attention.parts import Compressor

LOADED_PLAIN = "load the model in float32, bfloat16 or float16, without quantisation"
"""The hint of errors about quantised weights that cannot be read."""


def iterate_weight_tensors(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Yields the name and tensor of each unquantised parameter of a model, and then of all other
    entries of the model's state dict. Raises ModelError: an entry is not a tensor."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    plain = {name for name, weight in parameters.items() if is_unquantised_weight(weight)}
    yield from ((name, weight) for name, weight in model.named_parameters() if name in plain)
    for name, tensor in _iterate_module_tensors(model, plain):
        # Flat, since bitsandbytes changes the shape of a quantised weight at its first use.
        yield name, tensor.reshape(-1) if name in parameters else tensor


def _iterate_module_tensors(
    module: Any, skipped_names: Set[str] = frozenset()
) -> Iterator[tuple[str, Tensor]]:
    """Yields the names and tensors in a module's state dict, except for `skipped_names`."""
    for name, part in module.named_modules():
        prefix, state = f"{name}." if name else "", dict[str, Any]()
        packing = getattr(getattr(part, "weight", None), "quant_state", None)
        if packing is None:  # by parts: `state_dict` of a whole model would dequantise it twice
            part._save_to_state_dict(state, prefix, False)
        else:  # bitsandbytes 0.50 would spoil the scales of weights that a CPU has used
            state |= {f"{prefix}{key}": one for key, one in part.named_parameters(recurse=False)}
            for at, inner in (("", packing), (".state2", getattr(packing, "state2", None))):
                for key, value in vars(inner).items() if inner is not None else ():
                    if isinstance(value, Tensor):
                        state[f"{prefix}weight.quant_state{at}.{key}"] = value
        for key in sorted(state.keys() - skipped_names):
            yield from _iterate_state_dict_tensors(key, state[key])


def _iterate_state_dict_tensors(entry_name: str, entry: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(entry, Tensor) and hasattr(entry, "__tensor_flatten__"):
        for inner in entry.__tensor_flatten__()[0]:
            yield from _iterate_state_dict_tensors(f"{entry_name}.{inner}", getattr(entry, inner))
    elif isinstance(entry, Tensor):
        yield entry_name, (entry.dequantize() if entry.is_quantized else entry).detach()
    elif isinstance(entry, (tuple, list)):
        for i, one in enumerate(entry):
            yield from _iterate_state_dict_tensors(f"{entry_name}.{i}", one)
    elif not (entry is None or isinstance(entry, (torch.dtype, bool, int, float, str))):
        kind = type(entry).__name__
        raise ModelError(f"weight {entry_name} must be a tensor, got {kind}", LOADED_PLAIN)


KEY = "fingerprint"
"""The metadata entry of a compressor file that holds its model's fingerprint."""
ROTATE, DISTANCE = "rotate", "distance"
"""The metadata entries that say whether the queries were rotated, and to which distance."""


@dataclass(frozen=True)
class ModelFingerprint:
    """A model's type, sizes and hash of weights, which together identify the model."""

    kind: str
    layers: int
    heads: int
    groups: int
    dim: int
    weights: str

    def __str__(self) -> str:
        heads = f"{self.heads} query and {self.groups} key heads of {self.dim}"
        return f"{self.kind} of {self.layers} layers with {heads} (weights {self.weights[:8]})"


def compute_model_fingerprint(model: Any) -> ModelFingerprint:
    """Computes a model's fingerprint. Raises ModelError: weights are missing, or cannot be read."""
    if any(weight.is_meta for weight in model.parameters()):
        raise ModelError(
            "some weights are not in memory, so that esa cannot compute the model's fingerprint",
            "load the whole model into memory, or use a smaller model that fits",
        )
    config, layers, digest = model.config, list_qkv_projections(model), hashlib.sha256()
    with convert_read_errors("a projection of this model", LOADED_PLAIN):
        for projection in (*layers[0][:2], *layers[-1][:2]):
            digest.update(_read_identifying_weight_bytes(projection))
    sizes = len(layers), int(config.num_attention_heads), *get_kv_head_shape(config)
    return ModelFingerprint(str(config.model_type), *sizes, digest.hexdigest())


def _read_identifying_weight_bytes(projection: Any) -> bytes:
    """Returns the signs of a projection module's weight, or all bytes of a quantised weight."""
    if (weight := get_unquantised_weight(projection)) is not None:
        return torch.signbit(weight).to(torch.uint8).cpu().numpy().tobytes()
    tensors = [tensor.reshape(-1).contiguous() for _, tensor in _iterate_module_tensors(projection)]
    if not tensors:
        raise ModelError("a projection of this model has no readable weights", LOADED_PLAIN)
    return b"".join(tensor.view(torch.uint8).cpu().numpy().tobytes() for tensor in tensors)


def read_model_fingerprint(file_metadata: Mapping[str, str]) -> ModelFingerprint | None:
    """Returns the fingerprint in a compressor file's metadata, if any. Raises PresetError."""
    try:
        return ModelFingerprint(**json.loads(file_metadata[KEY])) if KEY in file_metadata else None
    except (ValueError, TypeError) as error:
        message = "the compressor file's fingerprint of its model cannot be read"
        raise PresetError(message, "make the compressor file again by `esa calibrate`") from error


def make_query_rotation_metadata(method: Method) -> dict[str, str]:
    """Returns the entries of a compressor file's metadata that say how a method rotates queries."""
    if not method.score.rotates:
        return {ROTATE: "false"}
    return {ROTATE: "true", DISTANCE: str(method.position.distance)}


def check_compressor_fits(compressor: Compressor, model: Any, method: Method | None = None) -> None:
    """Raises PresetError if a compressor fits another model, or otherwise rotated queries."""
    from esa_cli.attention.parts import report_plugin_errors

    with report_plugin_errors({"compressor": compressor}):
        metadata = compressor.metadata
    file = next(iter(compressor.files), "the compressor file")
    wanted = read_model_fingerprint(metadata)
    if wanted is not None and wanted != (own := compute_model_fingerprint(model)):
        raise PresetError(
            f"the compressor file {file} was made for a {wanted}; this model is a {own}",
            "make a compressor file by `esa calibrate`, or set compressor.name=closed-form",
        )
    if method is None or not method.score.features or ROTATE not in metadata:
        return
    fitted = {key: metadata[key] for key in (ROTATE, DISTANCE) if key in metadata}
    if fitted != (used := make_query_rotation_metadata(method)):
        raise PresetError(
            f"the compressor file {file} was made for queries rotated with {fitted}, but this "
            f"method rotates queries with {used}",
            "set score.rotate and position.distance as in the compressor file, or make another "
            "file by `esa calibrate --for`",
        )
