"""Fingerprints of models, and the check that a compressor file belongs to a model and a method.

A fingerprint consists of a model's numbers of layers and heads, and a sha256 over the signs of the
query and key weights of its first and last layer. Rounding to another number type preserves the
signs, and training changes thousands of them. For quantised weights all bytes count, so each
quantisation has its own fingerprint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Set
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from esa_cli.errors import ModelError, PresetError
from esa_cli.models.attachment.layer_traits import get_unquantised_weight, list_qkv_projections
from esa_cli.models.files.checkpoint_files import convert_read_errors
from esa_cli.models.files.families import get_key_shape
from esa_cli.models.text_passes.text_forward import is_unquantised_weight

if TYPE_CHECKING:
    from esa_cli.attention.method import Method
    from esa_cli.attention.parts import Compressor

LOADED_PLAIN = "load the model in float32, bfloat16 or float16, without quantisation"
"""The hint of errors about weights that cannot be read."""


def iterate_weight_tensors(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Yields the name and tensor of each unquantised parameter of a model, and then of all other
    entries of the model's state. Quantised weights are flattened, because bitsandbytes changes the
    shape of a weight at its first use. Raises ModelError: an entry is not a tensor."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    plain = {name for name, weight in parameters.items() if is_unquantised_weight(weight)}
    yield from ((name, weight) for name, weight in model.named_parameters() if name in plain)
    for name, tensor in _iterate_module_tensors(model, plain):
        yield name, tensor.reshape(-1) if name in parameters else tensor


def _iterate_module_tensors(
    module: Any, skipped_names: Set[str] = frozenset()
) -> Iterator[tuple[str, Tensor]]:
    """Yields the name and tensor of each entry of a module's state, except for `skipped_names`."""
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
            yield from _iterate_entry_tensors(key, state[key])


def _iterate_entry_tensors(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """Yields the name of each tensor inside one entry of a module's state, and the tensor."""
    if isinstance(value, Tensor) and hasattr(value, "__tensor_flatten__"):
        for inner in value.__tensor_flatten__()[0]:
            yield from _iterate_entry_tensors(f"{name}.{inner}", getattr(value, inner))
    elif isinstance(value, Tensor):
        yield name, (value.dequantize() if value.is_quantized else value).detach()
    elif isinstance(value, (tuple, list)):
        for i, one in enumerate(value):
            yield from _iterate_entry_tensors(f"{name}.{i}", one)
    elif not (value is None or isinstance(value, (torch.dtype, bool, int, float, str))):
        raise ModelError(
            f"{name} of this model must be a tensor, got {type(value).__name__}", LOADED_PLAIN
        )


KEY = "fingerprint"
"""The metadata entry of a compressor file that holds its model's fingerprint."""
ROTATE, DISTANCE = "rotate", "distance"
"""The metadata entries that say whether the queries were rotated, and to which distance."""


@dataclass(frozen=True)
class ModelFingerprint:
    """A model's type, its sizes and a hash of some weights, which together identify the model."""

    kind: str
    layers: int
    heads: int
    groups: int
    dim: int
    weights: str

    def __str__(self) -> str:
        heads = f"{self.heads} query and {self.groups} key heads of {self.dim}"
        return f"{self.kind} of {self.layers} layers with {heads} (weights {self.weights[:8]})"

    def make_json_text(self) -> str:
        """Returns the fingerprint as JSON, which the metadata of a compressor file contains."""
        return json.dumps(asdict(self), sort_keys=True)


def compute_model_fingerprint(model: Any) -> ModelFingerprint:
    """Computes the fingerprint of a causal language model of transformers. Raises ModelError: the
    weights are not in memory, or cannot be read because of their quantisation."""
    if any(weight.is_meta for weight in model.parameters()):
        raise ModelError(
            "some weights are not in memory, so that esa cannot compute the model's fingerprint",
            "load the whole model into memory, or use a smaller model",
        )
    config, layers, digest = model.config, list_qkv_projections(model), hashlib.sha256()
    with convert_read_errors("a projection of this model", LOADED_PLAIN):
        for projection in (*layers[0][:2], *layers[-1][:2]):
            digest.update(_read_identifying_weight_bytes(projection))
    sizes = len(layers), int(config.num_attention_heads), *get_key_shape(config)
    return ModelFingerprint(str(config.model_type), *sizes, digest.hexdigest())


def _read_identifying_weight_bytes(projection: Any) -> bytes:
    """Returns the signs of a projection's weight, or all bytes of a quantised weight."""
    if (weight := get_unquantised_weight(projection)) is not None:
        return torch.signbit(weight).to(torch.uint8).cpu().numpy().tobytes()
    tensors = [tensor.reshape(-1).contiguous() for _, tensor in _iterate_module_tensors(projection)]
    if not tensors:
        raise ModelError("a projection of this model has no weights that can be read", LOADED_PLAIN)
    return b"".join(tensor.view(torch.uint8).cpu().numpy().tobytes() for tensor in tensors)


def read_model_fingerprint(file_metadata: Mapping[str, str]) -> ModelFingerprint | None:
    """Returns the fingerprint in a compressor file, or None. Raises PresetError: it is damaged."""
    try:
        return ModelFingerprint(**json.loads(file_metadata[KEY])) if KEY in file_metadata else None
    except (ValueError, TypeError) as error:
        message = "the compressor file's fingerprint of its model cannot be read"
        raise PresetError(message, "make the compressor file again by `esa calibrate`") from error


def describe_query_rotation(method: Method) -> dict[str, str]:
    """Returns a compressor file's metadata entries on how a method rotates queries."""
    if not method.score.rotates:
        return {ROTATE: "false"}
    return {ROTATE: "true", DISTANCE: str(method.position.distance)}


def check_compressor_fits(compressor: Compressor, model: Any, method: Method | None = None) -> None:
    """Raises PresetError if a compressor with `metadata`, such as `LearnedCompressor`, was fitted
    to another model than `model`, or to queries that are rotated differently than in `method`."""
    from esa_cli.attention.parts import report_plugin_errors

    with report_plugin_errors({"compressor": compressor}):
        metadata = compressor.metadata
    file = next(iter(compressor.files), "the compressor file")
    wanted = read_model_fingerprint(metadata)
    if wanted is not None and wanted != (own := compute_model_fingerprint(model)):
        raise PresetError(
            f"the compressor file {file} was made for a {wanted}; this model is a {own}",
            "make a file for this model by `esa calibrate`, or set compressor.name=closed-form",
        )
    if method is None or not method.score.features or ROTATE not in metadata:
        return
    fitted = {key: metadata[key] for key in (ROTATE, DISTANCE) if key in metadata}
    if fitted != (used := describe_query_rotation(method)):
        raise PresetError(
            f"the compressor file {file} was made for queries with the rotation {fitted}; this "
            f"method uses {used}",
            "set score.rotate and position.distance to these values, or make another file by "
            "`esa calibrate --for`",
        )
