"""Conversion of a GGUF file to a folder that transformers' plain `from_pretrained` loads.

It is done once, since unpacking takes tens of seconds. The weights keep the precision that
quantisation left, in float32, since 16 bits would lose digits of 4-bit weights. The tokenizer is
the one the GGUF file describes. Architectures without an entry in `gguf_families.py` are read by
transformers where it can, which takes more memory.
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

from esa_cli.errors import EsaError, ModelError, ResourceError, first_line
from esa_cli.models.gguf.gguf_families import GGUF_FAMILIES
from esa_cli.models.gguf.gguf_file import GgufFile
from esa_cli.models.gguf.gguf_settings import GgufSettings, check_counts
from esa_cli.models.gguf.gguf_splitting import split_as_named, unknown_way
from esa_cli.models.loading.quiet_transformers import gc_paused, quiet_transformers
from esa_cli.system.progress import StageProgress, silent


def convert(gguf_file: Path, folder: Path, *, progress: StageProgress | None = None) -> str:
    """Writes config.json, generation_config.json, tokenizer files and model.safetensors.

    Args:
        folder: an existing folder; on an error it may hold a part of the files.
        progress: called with the stages "import", "convert" and "save".

    Returns:
        What `unknown_way` says of the file.

    Raises:
        ModelError: not a whole GGUF file, or an architecture or tokenizer not supported.
        ResourceError: not enough memory.
        OSError: the folder cannot be written.
    """
    report = progress or silent
    report("import", 0, None)
    with gc_paused():
        import transformers  # noqa: F401
    try:
        with quiet_transformers(), gc_paused(), GgufFile(gguf_file) as file:
            report("convert", 0, None)
            check_counts(file)
            known = file.architecture in GGUF_FAMILIES
            (_convert if known else _convert_by_transformers)(file, folder, report)
            _write_tokenizer(file, folder)
            unknown = unknown_way(file.metadata)
    except (EsaError, OSError):
        raise
    except MemoryError as error:
        raise ResourceError(
            f"not enough memory to convert {gguf_file.name}",
            "close other programs, or convert it on a larger machine and copy the folder",
        ) from error
    except Exception as error:
        raise ModelError(
            f"{gguf_file.name} cannot be converted: {first_line(error)}",
            "it may be damaged, or of a kind that is not read from GGUF, see docs/models.md",
        ) from error
    # safetensors makes its files private; a shared ESA_HOME needs them as readable as the others.
    for path in folder.glob("*.safetensors"):
        path.chmod((folder / "config.json").stat().st_mode & 0o777)
    return unknown


def _convert(file: GgufFile, folder: Path, report: StageProgress) -> None:
    """By the entry of its architecture; about as much memory as one file of weights."""
    import torch
    from transformers import GenerationConfig

    from esa_cli.models.gguf.gguf_weights import GgufWeights

    family = GGUF_FAMILIES[file.architecture]
    config = GgufSettings(file, family).config()
    weights = GgufWeights(file, family, config)
    weights.write(folder, report)
    config.architectures, config.dtype = [weights.architecture], torch.float32
    config.save_pretrained(folder)
    generation: Any = GenerationConfig.from_model_config(config)
    generation.save_pretrained(folder)


def _convert_by_transformers(file: GgufFile, folder: Path, report: StageProgress) -> None:
    import torch
    import transformers

    options: dict[str, Any] = {}
    # Without it, a machine that has the `kernels` package keeps the weights packed.
    if hasattr(transformers, "GgufConfig"):
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    # transformers draws a progress bar for a GGUF file whatever its settings are.
    with contextlib.redirect_stderr(io.StringIO()):
        automatic: Any = transformers.AutoModelForCausalLM
        model, info = automatic.from_pretrained(
            file.path.parent, gguf_file=file.path.name, local_files_only=True,
            trust_remote_code=False, dtype=torch.float32, output_loading_info=True, **options,
        )  # fmt: skip
    if missing := sorted(info["missing_keys"]):
        raise ModelError(
            f"transformers cannot convert {file.path.name} of the architecture "
            f"'{file.architecture}': it does not find the weights {missing[0]}",
            "use the model's safetensors files",
        )
    report("save", 0, None)
    _without_quantization(model).save_pretrained(folder)


def _write_tokenizer(file: GgufFile, folder: Path) -> None:
    """Raises ModelError: the file's tokenizer is of no known kind."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(
        file.path.parent, gguf_file=file.path.name, local_files_only=True
    )
    tokenizer.save_pretrained(folder)
    split_as_named(folder / "tokenizer.json", file.metadata.get("tokenizer.ggml.pre"))


def _without_quantization(model: Any) -> Any:
    """The same weights in a model whose configuration does not say it came from GGUF."""
    import torch

    values = model.config.to_dict()
    values.pop("quantization_config", None)
    with torch.device("meta"):
        clean = type(model)(type(model.config)(**values))
    clean.load_state_dict(model.state_dict(), strict=True, assign=True)
    clean.tie_weights()
    clean.generation_config = model.generation_config
    return clean
