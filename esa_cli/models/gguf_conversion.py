"""Turns a GGUF file into a folder that transformers' plain `from_pretrained` loads.

transformers reads GGUF itself, but takes tens of seconds to unpack it on each start; esa does that
once and keeps the unpacked weights. The weights keep what quantisation has left of them, and the
tokenizer is the one the GGUF file describes. Which architectures can be read is transformers'
business. The tokenizer's way of splitting text is put right for the `smollm` type, which
transformers does not know; for other types unknown to transformers it stays as transformers left
it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from esa_cli.errors import EsaError, ModelError, ResourceError
from esa_cli.models.ggufhead import read_string
from esa_cli.models.quiet_transformers import gc_paused, quiet_transformers, stderr_swallowed
from esa_cli.system.progress import Progress, silent

_CHUNK = 1 << 20

# llama.cpp names a way of splitting text by one word; SmolLM's splits every digit off first.
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


def sha256_of(path: Path, progress: Progress | None = None) -> str:
    """The hex sha256 of a file, reporting the stage "hash" in bytes. Raises OSError."""
    report = progress or silent
    digest, done, size = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            report("hash", done, size)
    return digest.hexdigest()


def convert(
    gguf_file: Path, folder: Path, *, dtype: str = "float32", progress: Progress | None = None
) -> None:
    """Write config.json, generation_config.json, tokenizer files and model.safetensors.

    Args:
        gguf_file: the file to read.
        folder: an existing folder to write to; on an error it may hold a part of the files.
        dtype: "float32", "float16" or "bfloat16", of the weights on disk. 16 bits halve the
            space; bfloat16 loses digits that a 4-bit GGUF file still has.
        progress: called with the stages "import", "convert" and "save".

    Raises:
        ModelError: not a whole GGUF file, or an architecture or tokenizer not supported.
        ResourceError: not enough memory.
        OSError: the folder cannot be written.
    """
    report = progress or silent
    pre = read_string(gguf_file, "tokenizer.ggml.pre")
    _write(gguf_file, folder, dtype, report)
    fix_pre_tokenizer(folder / "tokenizer.json", pre)
    # safetensors makes its file private; a shared ESA_HOME needs it as readable as the others.
    (folder / "model.safetensors").chmod((folder / "config.json").stat().st_mode & 0o777)


def _write(gguf_file: Path, folder: Path, dtype: str, report: Progress) -> None:
    """What transformers makes of the file, with its errors turned into esa's."""
    report("import", 0, None)
    with gc_paused():
        import torch
        import transformers  # noqa: F401
    try:
        with quiet_transformers(), gc_paused():
            report("convert", 0, None)
            with stderr_swallowed():
                model, tokenizer = _read(gguf_file, getattr(torch, dtype))
            report("save", 0, None)
            _without_quantization(model).save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    except (EsaError, OSError):
        raise
    except MemoryError as error:
        raise ResourceError(
            f"Not enough memory to convert {gguf_file.name}.",
            "Close other programs, or convert it on a larger machine and copy the folder.",
        ) from error
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ModelError(
            f"{gguf_file.name} cannot be converted: {reason}",
            "It may be cut off, or of an architecture that transformers does not read from GGUF.",
        ) from error


def _read(gguf_file: Path, dtype: Any) -> tuple[Any, Any]:
    import transformers

    source = {"gguf_file": gguf_file.name, "local_files_only": True, "trust_remote_code": False}
    options: dict[str, Any] = {}
    # Without it, a machine that has the `kernels` package keeps the weights packed.
    if hasattr(transformers, "GgufConfig"):
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        gguf_file.parent, dtype=dtype, **source, **options
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
    """Replace the pre-tokenizer in tokenizer.json where llama.cpp's type `pre` asks for another.

    Raises:
        ModelError: there is no tokenizer.json.
    """
    if not tokenizer_json.is_file():
        raise ModelError("The GGUF file's tokenizer cannot be written as tokenizer.json.")
    if pre in _PRE_TOKENIZERS:
        content = json.loads(tokenizer_json.read_text("utf-8"))
        content["pre_tokenizer"] = _PRE_TOKENIZERS[pre]
        tokenizer_json.write_text(json.dumps(content, ensure_ascii=False, indent=2), "utf-8")
