"""Reading a model's weights from a folder by transformers, and its errors in esa's words."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from esa_cli.errors import EsaError, ModelError, ResourceError, first_line
from esa_cli.models.files.model_reference import ModelRef
from esa_cli.models.loading.quantization import QUANTIZATIONS, packing_error, settle
from esa_cli.models.loading.text_part import reading_options

SMALLER = "use a smaller model, close other programs, or try --dtype bfloat16 or int8"


def read_pretrained(folder: Path, place: str, dtype: Any, packing: str = "") -> Any:
    """The model in a folder, on a device of `choose_device`.

    Args:
        dtype: of torch. packing: of `QUANTIZATIONS`; "": the weights stay as they are.

    Raises:
        ModelError: the files lack some of the weights. Others: see `load_error`.
    """
    from transformers import AutoModelForCausalLM

    # It reports each cast, and kernels that it does without.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    options: dict[str, Any] = {} if place == "cpu" and not packing else {"device_map": place}
    if packing:
        options["quantization_config"] = QUANTIZATIONS[packing].config(dtype)
    options |= reading_options(folder)
    automatic: Any = AutoModelForCausalLM
    model, found = automatic.from_pretrained(
        folder, dtype=dtype, use_safetensors=True, output_loading_info=True,
        trust_remote_code=False, local_files_only=True, **options,
    )  # fmt: skip
    if missing := sorted(found["missing_keys"]):
        raise ModelError(
            f"{folder} lacks {len(missing)} of the model's weights, such as {missing[0]}",
            "fetch the model again; weights that were quantised may need another version of "
            "transformers",
        )
    settle(model)
    return model


def load_error(ref: ModelRef, config: dict[str, Any], error: Exception) -> EsaError:
    """What to say of an error of `read_pretrained`; config: of config.json."""
    kind = config["model_type"]
    text = str(error)
    if "memory" in text.lower() and isinstance(error, RuntimeError):
        return ResourceError(f"not enough memory to load {ref.name}", SMALLER)
    if packed := packing_error(ref.name, config, error):
        return packed
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
    return ModelError(
        f"{ref.name} cannot be loaded: {first_line(error)}", "remove it and fetch it again"
    )
