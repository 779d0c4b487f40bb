"""Presets: inheritance, overrides, validation, adapters, and every shipped one."""

from __future__ import annotations

import dataclasses
import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from properties import SCALARS, expect_one_line, trees

from esa_cli.attention.window import Window
from esa_cli.errors import EsaError, PresetError
from esa_cli.models import parse_reference
from esa_cli.qa.presets import preset, preset_files, resolved_preset
from esa_cli.qa.presets.preset import (
    HEAD,
    AnswerSettings,
    find_adapter_folder,
    load_preset,
    parse_setting_override,
)
from esa_cli.qa.presets.resolved_preset import build_attention_method, resolve_preset

SHIPPED = sorted(path.stem for path in preset_files.find_shipped_preset_folder().glob("*.yaml"))


@pytest.fixture(autouse=True)
def no_user_presets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "user"
    monkeypatch.setattr(preset_files, "get_user_preset_folder", lambda: folder)
    return folder


def write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_presets_load_and_build(name: str) -> None:
    chosen = load_preset(name)
    resolve_preset(chosen)
    parse_reference(chosen.model)
    assert chosen.description
    assert preset_files.find_preset_file(name).read_text().startswith("# ")


@pytest.mark.parametrize("name", SHIPPED)
def test_what_show_prints_is_the_same_preset(name: str, tmp_path: Path) -> None:
    chosen = load_preset(name)
    again = load_preset(write(tmp_path / f"{name}.yaml", preset.format_as_yaml(chosen)))
    assert again == chosen


def test_extends_goes_up_the_chain(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", "model: m\ncontext: 900\nwindow: {initial: 1, selected: 2}")
    write(tmp_path / "b.yaml", "extends: a.yaml\nwindow: {selected: 3, local: 4, chunk: 5}")
    top = write(tmp_path / "c.yaml", "extends: b.yaml\nwindow: {local: 6}")
    window = load_preset(top).window
    assert (window.initial, window.selected, window.local, window.chunk) == (1, 3, 6, 5)


def test_extending_in_a_circle_is_refused(tmp_path: Path) -> None:
    one = write(tmp_path / "one.yaml", "extends: two.yaml")
    write(tmp_path / "two.yaml", "extends: one.yaml")
    with pytest.raises(PresetError, match="one -> two -> one"):
        load_preset(one)


def test_ones_own_preset_may_extend_a_shipped_one_that_extends_its_name(
    no_user_presets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "shipped"
    monkeypatch.setattr(preset_files, "find_shipped_preset_folder", lambda: shipped)
    write(shipped / "base.yaml", "model: m\ncontext: 9000\nkernel: reference")
    write(shipped / "large.yaml", "extends: base\ndescription: large")
    write(no_user_presets / "base.yaml", "extends: large\nreading: local")
    chosen = load_preset("base")
    assert (chosen.kernel, chosen.description, chosen.reading) == ("reference", "large", "local")


def test_heads_of_one_model_do_not_vote_in_another(tmp_path: Path) -> None:
    assert load_preset("consensus").score["heads"] == load_preset().score["heads"]
    assert "heads" not in load_preset("consensus", ["model=random:llama"]).score
    kept = load_preset("consensus", ["model=random:llama", "score.heads=[[0, 1]]"]).score
    assert kept["heads"] == [[0, 1]]
    same = tmp_path / "same.yaml"
    same.write_text("extends: smollm2-135m\nwindow: {selected: 256}\n", "utf-8")
    assert load_preset(str(same)).score["heads"] == load_preset().score["heads"]


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("window", ""), ("=3", ""), ("a=[", ""), ("a={b: 1, b: 2}", ""), ("name=x", ""),
        ("description=" + "[" * 5000, ""), (".".join("a" * 5000) + "=1", ""),
        ("windows.selected=3", "window"), ("window.seleted=3", "'window.selected'"),
        ("window.chunk=0", ""), ("window.local=many", ""), ("window.selected=5000", "selected"),
        ("window.dense=513", "dense"), ("reading=fast", ""), ("model=[1]", ""),
        ("prompt.after=hello", ""), ("selector.name=topp", "topk"), ("kernel=fast", "reference"),
        ("selector.proximty=2", "proximity"), ("compressor.rank=0", ""),
        ("position.distance=512", ""), ("generation.temperature=1.0e-320", ""),
    ],
)  # fmt: skip
def test_settings_that_do_not_hold_are_refused(override: str, hint: str) -> None:
    with pytest.raises(PresetError) as caught:
        resolve_preset(load_preset("tiny-random", [override]))
    assert hint in caught.value.hint
    assert len(caught.value.message + caught.value.hint) < 300


@pytest.mark.parametrize(
    "text",
    [
        b"a: [", b"- 1", b"context: 5", b"extends: [a]", b"extends: nosuch", b"\tmodel: m",
        b"model: m\ncontext: 9\nmodel: n", b"model: m\nname: mine", b"model: caf\xe9",
        b"description: " + b"[" * 100_000, b"x: " + b"{a: " * 3000 + b"1" + b"}" * 3000,
    ],
)  # fmt: skip
def test_broken_files_are_refused(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_bytes(text)
    for name in (str(tmp_path / "p.yaml"), str(tmp_path / "none.yaml"), "tiny-randm"):
        with pytest.raises(PresetError):
            load_preset(name)


FROM_TEXT = "answer.from=text"


@pytest.mark.parametrize(
    "override",
    [
        "from=elsewhere", "form=verse", "passages=0", "passages=257", "passages=many", "prior=-0.5",
        "threshold=high", "adapter=3", "adaptor=x", "prompt=Text", "prompt='{passage}'",
    ],
)  # fmt: skip
def test_what_does_not_hold_is_refused(override: str) -> None:
    with pytest.raises(PresetError) as error:
        load_preset("tiny-random", [FROM_TEXT, f"answer.{override}"])
    assert f"answer.{override.partition('=')[0]}" in str(error.value)
    assert "adapter" in error.value.hint or override != "adaptor=x"


def extending(folder: Path, text: str) -> preset.Preset:
    (folder / "base.yaml").write_text(
        "extends: tiny-random\nanswer: {from: text, passages: 5, adapter: small}\n", "utf-8"
    )
    path = folder / "other.yaml"
    path.write_text(f"extends: base.yaml\n{text}", "utf-8")
    return load_preset(str(path))


@pytest.mark.parametrize("own", ["", "answer: {passages: 7}\n"])
def test_a_preset_of_another_model_does_not(tmp_path: Path, own: str) -> None:
    answer = extending(tmp_path, f"model: hf:some/model@main\n{own}").answer
    assert answer == AnswerSettings(passages=7 if own else 16)


def test_a_method_answers_from_rows() -> None:
    made = load_preset("tiny-random", [FROM_TEXT, "answer.passages=3"])
    assert resolved_preset.replace_method("esa", made).answer.source == "rows"
    assert (
        resolved_preset.set_method_to_compare(resolved_preset.AS_IS, made).answer.source == "text"
    )


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of shipped adapters; the working directory is an empty one."""
    monkeypatch.setattr(preset_files, "find_shipped_preset_folder", lambda: tmp_path / "presets")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "presets" / "adapters"


def made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / HEAD).write_bytes(b"")
    return folder


def test_a_name_is_a_shipped_one(shipped: Path) -> None:
    folder = made(shipped / "small")
    assert find_adapter_folder("small") == folder
    made(Path("small"))
    assert find_adapter_folder("small") == folder
    assert find_adapter_folder("./small") == Path("small")


@pytest.mark.parametrize("name", ["", ".", "none", "/none", "../presets/adapters/empty", "~nobody"])
def test_a_missing_one_is_refused(shipped: Path, name: str) -> None:
    (shipped / "empty").mkdir(parents=True)
    with pytest.raises(PresetError, match=r"answer\.adapter|~nobody"):
        find_adapter_folder(name)


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
