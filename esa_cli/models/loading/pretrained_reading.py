"""Reading a model's weights from a folder by transformers, and its errors in esa's words."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from esa_cli.errors import EsaError, ModelError, ResourceError
from esa_cli.models.files.checkpoint_files import read_config, said, stored_weights
from esa_cli.models.files.model_reference import ModelRef
from esa_cli.models.loading.packed_formats import settings_in
from esa_cli.models.loading.packed_layouts import packed_weights
from esa_cli.models.loading.quantization import QUANTIZATIONS, packing_error, settle
from esa_cli.models.loading.text_part import reading_options

SMALLER = "use a smaller model, close other programs, or try --dtype bfloat16 or int8"


def read_pretrained(
    folder: Path, place: str, dtype: Any, packing: str = "", kept: bool = False
) -> Any:
    """The model in a folder, on a device of `choose_device`.

    Args:
        dtype: of torch. packing: of `QUANTIZATIONS`; "": the weights are not packed here.
        kept: whether the weights of quantised files stay as they are; else they are unpacked.

    Raises:
        ModelError: the files lack some of the weights, or have some that cannot be unpacked.
            Others: see `load_error`.
    """
    # It reports each cast, and kernels that it does without.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    options: dict[str, Any] = {} if place == "cpu" and not packing else {"device_map": place}
    if packing:
        options["quantization_config"] = QUANTIZATIONS[packing].config(dtype)
    options |= reading_options(folder) | {"dtype": dtype, "output_loading_info": True}
    quantised = settings_in(read_config(folder)) or packed_weights(stored_weights(folder))
    read = _unpacked if quantised and not kept else _as_stored
    model, found = read(folder, options)
    if missing := sorted(found["missing_keys"]):
        raise ModelError(
            f"{folder} lacks {len(missing)} of the model's weights, such as {missing[0]}",
            "fetch the model again; weights that were quantised may need another version of "
            "transformers",
        )
    settle(model)
    return model


def _as_stored(folder: Path, options: dict[str, Any]) -> Any:
    """The model and what transformers says of its loading."""
    from transformers import AutoModelForCausalLM

    automatic: Any = AutoModelForCausalLM
    return automatic.from_pretrained(
        folder, use_safetensors=True, trust_remote_code=False, local_files_only=True, **options
    )


def _unpacked(folder: Path, options: dict[str, Any]) -> Any:
    """As `_as_stored`, with the plain weights of quantised files, one at a time."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, GenerationConfig

    from esa_cli.models.loading.unpacking import unpacked_weights

    config: Any = options.pop("config", None)
    if config is None:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    weights = unpacked_weights(folder, settings_in(config.to_dict()), options["dtype"])
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    if (folder / "generation_config.json").is_file():
        generation: Any = GenerationConfig
        options["generation_config"] = generation.from_pretrained(folder)
    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return kind.from_pretrained(None, config=config, state_dict=weights, **options)


def load_error(ref: ModelRef, config: dict[str, Any], error: Exception) -> EsaError:
    """What to say of an error of `read_pretrained`; config: of config.json."""
    kind = config["model_type"]
    text = str(error)
    if "memory" in text.lower() and isinstance(error, RuntimeError):
        return ResourceError(f"not enough memory to load {ref.name}", SMALLER)
    if "trust_remote_code" in text or "auto_map" in text:
        return ModelError(
            f"{ref.name} brings its own Python code, and esa does not run code from a model",
            "choose a model that transformers supports by itself",
        )
    if isinstance(error, (ValueError, KeyError)) and str(kind) in text:
        return ModelError(
            f"{ref.name} is of the kind '{kind}', which this transformers cannot load as a "
            "language model",
            "upgrade transformers, or choose another model (llama, qwen3, mistral, ...)",
        )
    if packed := packing_error(ref.name, config, error):
        return packed
    return ModelError(f"{ref.name} cannot be loaded: {said(error)}", "remove it and fetch it again")
