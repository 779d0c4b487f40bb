"""Random presets and overrides: valid ones come back the same, others are refused with the key."""

from __future__ import annotations

import dataclasses
import re
import time
from pathlib import Path
from typing import Any

import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from properties import SCALARS, expect_one_line, trees

from esa_cli.attention.window import Window
from esa_cli.errors import EsaError, PresetError
from esa_cli.qa.presets import preset
from esa_cli.qa.presets.preset import AnswerSettings, load_preset, parse_setting_override
from esa_cli.qa.presets.resolved_preset import build_attention_method

SECTIONS = {
    "window": [one.name for one in dataclasses.fields(Window)],
    "answer": [one.alias or name for name, one in AnswerSettings.model_fields.items()],
    "prompt": list(preset.Prompt.model_fields),
    "generation": list(preset.GenerationSettings.model_fields),
    "selector": ["name", "size", "windows"],
    "score": ["name", "heads", "contrast"],
    "compressor": ["name", "rank", "fit_tokens", "file"],
    "position": ["name", "distance"],
}
TOP = [name for name in preset.Preset.model_fields if name != "name"]
KEYS = [*TOP, *(f"{section}.{key}" for section, keys in SECTIONS.items() for key in keys)]
INSIDE = sorted({key for keys in SECTIONS.values() for key in keys})
VALUES = trees(INSIDE)
CHANGES = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3)


def with_changes(changes: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = load_preset("tiny-random").model_dump(exclude={"name"}, by_alias=True)
    for key, value in changes.items():
        section, _, inner = key.partition(".")
        if not inner:
            data[section] = value
        elif isinstance(data[section], dict):
            data[section] = {**data[section], inner: value}
    return data


def expect_key(error: PresetError, keys: list[str]) -> None:
    """The message names one of the keys, or the window, whose sum may be too large."""
    words = set(re.findall(r"\w+", error.message))
    assert words & {*keys, "window"}, error.message


@given(CHANGES)
@example({"window.chunk": 10**400})
@example({"answer.threshold": float("nan")})
@example({"generation.temperature": 1e-320})
def test_presets_are_valid_or_refused_with_the_key(changes: dict[str, Any]) -> None:
    data = with_changes(changes)
    try:
        made = preset.validate_preset_settings("made", data)
    except PresetError as error:
        expect_one_line(error)
        expect_key(error, [part for key in changes for part in key.split(".")])
        return
    assert preset.validate_preset_settings(
        "made", made.model_dump(exclude={"name"}, by_alias=True)
    ) == made or ("nan" in repr(changes))
    try:
        build_attention_method(made)
    except EsaError as error:
        expect_one_line(error)


@given(st.binary(max_size=60) | st.text("{}[]:,-&*!|>'\"#\n\t a1<~", max_size=40))
@example("a: &a [*a]")
@example("? {a: 1} : 2")
@example("x: !!python/object/apply:os.system [echo]")
@example("2020-13-45: 1")
def test_files_of_any_bytes(tmp_path: Path, content: bytes | str) -> None:
    path = tmp_path / "made.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    refused_or(path)


KINDS = [f"!!{kind} " for kind in ("int", "float", "bool", "timestamp", "binary", "set", "omap")]
BEGINNINGS = ["", "0x", "0b", "0", "-", "190", "1", ".", "2020-", "''", "é"]
PIECES = ["f", "1", "0", ":30", "_1", "e9", ".1", "-1", " "]


@given(
    st.sampled_from(["", *KINDS]),
    st.sampled_from(BEGINNINGS),
    st.sampled_from(PIECES),
    st.sampled_from([0, 1, 2, 5_000, 100_000]),
)
@example("", "0x", "f", 100_000)
@example("", "190", ":30", 100_000)
@example("", "190", ":30.5", 100_000)
def test_values_of_any_kind_and_length(
    tmp_path: Path, kind: str, begin: str, piece: str, count: int
) -> None:
    path, value = tmp_path / "made.yaml", f"{kind}{begin}{piece * count}"
    path.write_text(f"extends: tiny-random\ncontext: {value}\n", "utf-8")
    start = time.process_time()
    refused_or(path)
    try:
        load_preset("tiny-random", [f"context={value}"])
    except PresetError as error:
        expect_one_line(error)
    assert time.process_time() - start < 5


def refused_or(path: Path) -> None:
    try:
        load_preset(str(path))
    except PresetError as error:
        expect_one_line(error)


@given(st.sampled_from(KEYS) | st.text(max_size=9), SCALARS | st.text(max_size=20))
@example("window.selected", "[[[")
@example("a." * 40 + "b", "1")
@example("window..selected", "1")
@example("name", "x")
def test_overrides(key: str, value: Any) -> None:
    text = f"{key}={value if isinstance(value, str) else yaml.safe_dump(value).strip()}"
    try:
        assert isinstance(parse_setting_override(text), dict)
        load_preset("tiny-random", [text])
    except PresetError as error:
        expect_one_line(error)
