"""Conversion of a GGUF file to a folder that transformers' plain `from_pretrained` loads.

transformers reads GGUF itself, but needs tens of seconds to unpack it at each start; here that is
done once. The weights keep the precision that quantisation left, in float32, since 16 bits would
lose digits of 4-bit weights. The tokenizer is the one the GGUF file describes. transformers decides
which architectures can be read.
"""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

from esa_cli.errors import EsaError, ModelError, ResourceError, first_line
from esa_cli.models.quiet_transformers import gc_paused, quiet_transformers
from esa_cli.system.progress import StageProgress, silent

# llama.cpp names a way of splitting text by one word; SmolLM's, which transformers does not know,
# splits every digit off first. Other unknown words stay as transformers left them.
_PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "smollm": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": True,
            },
        ],
    }
}


def convert(gguf_file: Path, folder: Path, *, progress: StageProgress | None = None) -> None:
    """Writes config.json, generation_config.json, tokenizer files and model.safetensors.

    Args:
        folder: an existing folder; on an error it may hold a part of the files.
        progress: called with the stages "import", "convert" and "save".

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
        with quiet_transformers(), gc_paused():
            report("convert", 0, None)
            # transformers draws a progress bar for a GGUF file whatever its settings are.
            with contextlib.redirect_stderr(io.StringIO()):
                pre = pre_tokenizer_type(gguf_file)
                model, tokenizer = _read(gguf_file)
            report("save", 0, None)
            _without_quantization(model).save_pretrained(folder)
            tokenizer.save_pretrained(folder)
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
            "it may be cut off, or of an architecture that transformers does not read from GGUF",
        ) from error
    fix_pre_tokenizer(folder / "tokenizer.json", pre)
    # safetensors makes its file private; a shared ESA_HOME needs it as readable as the others.
    (folder / "model.safetensors").chmod((folder / "config.json").stat().st_mode & 0o777)


def pre_tokenizer_type(gguf_file: Path) -> str | None:
    """llama.cpp's name for the way the file's tokenizer splits text; None when it has none."""
    from gguf import GGUFReader

    field = GGUFReader(str(gguf_file)).fields.get("tokenizer.ggml.pre")
    return None if field is None else bytes(field.parts[field.data[0]]).decode("utf-8", "replace")


def _read(gguf_file: Path) -> tuple[Any, Any]:
    import torch
    import transformers

    source = {"gguf_file": gguf_file.name, "local_files_only": True, "trust_remote_code": False}
    options: dict[str, Any] = {}
    # Without it, a machine that has the `kernels` package keeps the weights packed.
    if hasattr(transformers, "GgufConfig"):
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        gguf_file.parent, dtype=torch.float32, **source, **options
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf_file.parent, **source)
    return model, tokenizer


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


def fix_pre_tokenizer(tokenizer_json: Path, pre: str | None) -> None:
    """Replaces the pre-tokenizer in tokenizer.json where llama.cpp's type `pre` needs another.
    Raises ModelError: there is no tokenizer.json."""
    if not tokenizer_json.is_file():
        raise ModelError("the GGUF file's tokenizer cannot be written as tokenizer.json")
    if pre in _PRE_TOKENIZERS:
        content = json.loads(tokenizer_json.read_text("utf-8"))
        content["pre_tokenizer"] = _PRE_TOKENIZERS[pre]
        tokenizer_json.write_text(json.dumps(content, ensure_ascii=False, indent=2), "utf-8")
