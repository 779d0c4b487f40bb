"""Presets: inheritance, overrides, validation, and every shipped one."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from esa_cli.errors import PresetError
from esa_cli.methods import registry
from esa_cli.models import DEFAULT_MODEL, parse_reference
from esa_cli.qa.presets import preset, preset_files
from esa_cli.qa.presets.resolved_preset import resolve

SHIPPED = sorted(path.stem for path in preset_files.shipped_dir().glob("*.yaml"))


@pytest.fixture(autouse=True)
def no_user_presets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "user"
    monkeypatch.setattr(preset_files, "user_dir", lambda: folder)
    return folder


def write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_presets_load_and_build(name: str) -> None:
    chosen = preset.load(name)
    resolve(chosen)
    parse_reference(chosen.model)
    assert chosen.description
    assert preset_files.find(name).read_text().startswith("# ")


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_presets_set_nothing_that_is_not_read(name: str) -> None:
    """Unknown settings are refused; a compressor is fitted where the score reads reduced keys, else
    by the paper's method over the preset, as in `esa selftest --methods preset,esa`."""
    chosen = resolve(name)
    paper = resolve(chosen.preset, method="esa").method
    assert paper.score.features
    read = chosen.method if chosen.method.score.features else paper
    assert read.compressor == registry.build("compressor", chosen.preset.compressor)


@pytest.mark.parametrize("name", SHIPPED)
def test_what_show_prints_is_the_same_preset(name: str, tmp_path: Path) -> None:
    chosen = preset.load(name)
    again = preset.load(write(tmp_path / f"{name}.yaml", preset.dump(chosen)))
    assert again == chosen


def test_the_default_preset_uses_the_default_model() -> None:
    assert preset.DEFAULT in SHIPPED
    assert preset.load().model == DEFAULT_MODEL


def test_paper_presets_have_the_papers_settings() -> None:
    for name in ("paper", "paper-mistral"):
        chosen = preset.load(name)
        window = chosen.window
        assert (window.initial, window.selected, window.local) == (128, 2048, 4096)
        assert chosen.selector["proximity"] == 3
        assert chosen.score == {"name": "sum", "rotate": False}
        assert chosen.compressor["rank"] == 128
        assert chosen.reading == "select"
        assert chosen.position["name"] == "esa"


def test_extends_goes_up_the_chain(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", "model: m\ncontext: 900\nwindow: {initial: 1, selected: 2}")
    write(tmp_path / "b.yaml", "extends: a.yaml\nwindow: {selected: 3, local: 4, chunk: 5}")
    top = write(tmp_path / "c.yaml", "extends: b.yaml\nwindow: {local: 6}")
    window = preset.load(top).window
    assert (window.initial, window.selected, window.local, window.chunk) == (1, 3, 6, 5)


def test_extending_in_a_circle_is_refused(tmp_path: Path) -> None:
    one = write(tmp_path / "one.yaml", "extends: two.yaml")
    write(tmp_path / "two.yaml", "extends: one.yaml")
    with pytest.raises(PresetError, match="one -> two -> one"):
        preset.load(one)


def test_ones_own_preset_may_extend_the_shipped_one_of_its_name(no_user_presets: Path) -> None:
    write(no_user_presets / "tiny-random.yaml", "extends: tiny-random\ndescription: mine")
    shipped = preset_files.shipped_dir() / "tiny-random.yaml"
    chosen = preset.load("tiny-random")
    assert chosen.description == "mine"
    assert chosen.window == preset.load(str(shipped)).window


def test_ones_own_preset_may_extend_a_shipped_one_that_extends_its_name(
    no_user_presets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "shipped"
    monkeypatch.setattr(preset_files, "shipped_dir", lambda: shipped)
    write(shipped / "base.yaml", "model: m\ncontext: 9000\nkernel: reference")
    write(shipped / "large.yaml", "extends: base\ndescription: large")
    write(no_user_presets / "base.yaml", "extends: large\nreading: local")
    chosen = preset.load("base")
    assert (chosen.kernel, chosen.description, chosen.reading) == ("reference", "large", "local")


def test_extending_oneself_without_a_shipped_preset_is_a_circle(no_user_presets: Path) -> None:
    write(no_user_presets / "mine.yaml", "extends: mine")
    with pytest.raises(PresetError, match="circle: mine -> mine"):
        preset.load("mine")


def test_another_name_starts_a_part_afresh(tmp_path: Path) -> None:
    path = write(tmp_path / "p.yaml", "extends: tiny-random\ncompressor: {name: none}")
    assert preset.load(path).compressor == {"name": "none"}
    assert preset.load("tiny-random", ["compressor.rank=4"]).compressor["fit_tokens"] == 64


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("window.selected=2048", {"window": {"selected": 2048}}),
        ("reading=local", {"reading": "local"}),
        ("score.rotate=true", {"score": {"rotate": True}}),
        ("prompt.after='a = b'", {"prompt": {"after": "a = b"}}),
        (" window.dense =", {"window": {"dense": None}}),
    ],
)
def test_overrides_are_read_as_yaml(text: str, parsed: object) -> None:
    assert preset.parse_override(text) == parsed


@pytest.mark.parametrize(
    "text",
    [
        "window",
        "=3",
        "a=[",
        "a={b",
        "a={b: 1, b: 2}",
        "name=x",
        "description=" + "[" * 5000,
        ".".join("a" * 5000) + "=1",
    ],
)
def test_broken_overrides_are_refused(text: str) -> None:
    with pytest.raises(PresetError, match="--set") as caught:
        preset.load("tiny-random", [text])
    assert len(caught.value.message + caught.value.hint) < 300


@pytest.mark.parametrize(
    ("overrides", "message", "hint"),
    [
        (["windows.selected=3"], "windows", "window"),
        (["window.seleted=3"], "window.seleted", "'window.selected'"),
        (["window.chunk=0"], "window.chunk must be at least 1, got 0", ""),
        (["window.local=many"], "window.local", ""),
        (
            ["window.selected=5000"],
            "at most the model's window of 512, got 5196",
            "window.selected",
        ),
        (["reading=fast"], "reading", ""),
        (["prompt.after=hello"], "{question}", ""),
        (["model=[1]"], "model", ""),
    ],
)
def test_what_does_not_hold_is_refused(overrides: list[str], message: str, hint: str) -> None:
    with pytest.raises(PresetError) as caught:
        preset.load("tiny-random", overrides)
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("overrides", "message", "hint"),
    [
        (["selector.name=topp"], "unknown selector 'topp'", "topk"),
        (["selector.proximty=2"], "no setting 'proximty'", "proximity"),
        (["selector.proximity=-1"], "at least 0", ""),
        (["selector.proximity=soon"], "selector.proximity = 'soon'", ""),
        (["compressor.rank=0"], "at least 1", ""),
        (["kernel=fast"], "unknown kernel", "reference"),
        (["position.distance=512"], "below the model's window", ""),
    ],
)
def test_parts_that_do_not_hold_are_refused(overrides: list[str], message: str, hint: str) -> None:
    with pytest.raises(PresetError) as caught:
        resolve("tiny-random", overrides)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(PresetError) as caught:
        preset.load("tiny-randm")
    assert "tiny-random" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "not valid YAML (line"),
        ("- 1", "must be a mapping"),
        ("context: 5", "lacks 'model'"),
        ("extends: [a]", "extends must be"),
        ("extends: nosuch", "unknown preset 'nosuch'"),
        ("\tmodel: m", "not valid YAML"),
        ("model: m\ncontext: 9\nmodel: n", "not valid YAML (line 3): 'model' is given twice"),
        ("window:\n  chunk: 8\n  'chunk': 9", "not valid YAML (line 3): 'chunk' is given twice"),
        ("model: m\nname: mine", "p.yaml must have no key 'name'"),
        ("description: " + "[" * 100_000, "must be nested at most 32 deep"),
        ("x: " + "{a: " * 3000 + "1" + "}" * 3000, "(line 1): mappings and lists must be nested"),
        ("model: m\ncontext: 9\ngeneration: {temperature: 1.0e-320}", "must be 0, or at least"),
        ("model: m\ncontext: 9\ngeneration: {temperature: .inf}", "must be 0, or at least 1e-06"),
        ("model: m\ncontext: 9\ngeneration: {temperature: -1.0}", "must be 0, or at least 1e-06"),
    ],
)
def test_broken_files_are_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(PresetError) as caught:
        preset.load(write(tmp_path / "p.yaml", text))
    assert message in caught.value.message


def test_a_key_over_one_of_a_yaml_anchor_is_not_given_twice(tmp_path: Path) -> None:
    text = (
        "extends: tiny-random\n"
        "score: {deep: {base: &base {rotate: true}, more: &more {<<: *base, pool: 1}}}\n"
        "selector: {<<: *more, rotate: false}\n"
    )
    assert preset.read_file(Path(write(tmp_path / "p.yaml", text)))["selector"] == {
        "rotate": False,
        "pool": 1,
    }


def test_the_name_of_a_file_is_said_where_a_key_claims_another(tmp_path: Path) -> None:
    write(tmp_path / "below.yaml", "name: other\nmodel: m\ncontext: 9000")
    with pytest.raises(PresetError, match=r"below\.yaml must have no key 'name'") as caught:
        preset.load(write(tmp_path / "top.yaml", "extends: below.yaml"))
    assert "is below" in caught.value.hint


def test_a_path_below_the_home_of_nobody_is_refused() -> None:
    with pytest.raises(PresetError, match="no home folder ~no-such-user"):
        preset.load("~no-such-user/p.yaml")


def test_a_missing_or_undecodable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PresetError, match="no preset file"):
        preset.load(str(tmp_path / "none.yaml"))
    (tmp_path / "latin.yaml").write_bytes(b"model: caf\xe9")
    with pytest.raises(PresetError, match="cannot read"):
        preset.load(str(tmp_path / "latin.yaml"))


def test_presets_are_frozen() -> None:
    with pytest.raises(ValidationError):
        preset.load("tiny-random").context = 3  # type: ignore[misc]


def test_users_presets_come_before_shipped_ones(no_user_presets: Path) -> None:
    write(no_user_presets / "mine.yml", "extends: tiny-random\ndescription: mine")
    for name in ("paper", "qwen3-4b"):
        write(no_user_presets / f"{name}.yaml", "extends: tiny-random\ndescription: changed")
        assert preset.load(name).description == "changed"
    assert preset.load("mine").description == "mine"
    assert set(SHIPPED) | {"mine", "qwen3-4b"} == set(preset_files.available())


def test_sizes_in_names_are_in_their_order(no_user_presets: Path) -> None:
    for name in ("a-14b", "a-9b", "a-1.5b"):
        write(no_user_presets / f"{name}.yaml", "extends: tiny-random\ndescription: mine")
    assert [*preset_files.available()][:3] == ["a-1.5b", "a-9b", "a-14b"]


def test_a_preset_cannot_make_python_objects(tmp_path: Path) -> None:
    path = write(tmp_path / "p.yaml", "model: !!python/object/apply:os.getcwd []")
    with pytest.raises(PresetError, match="YAML"):
        preset.load(path)


def test_line_breaks_are_shown_as_they_are_written(tmp_path: Path) -> None:
    texts = ("prompt.before='a\n\nb: c'", 'prompt.after="\\n\\n{question}"', "prompt.system='x'")
    chosen = preset.load("tiny-random", texts)
    assert chosen.prompt.before == "a\nb: c"
    shown = preset.dump(chosen)
    assert '  after: "\\n\\n{question}"\n' in shown
    assert "  before: |-\n" in shown
    assert "  system: x\n" in shown
    again = preset.load(write(tmp_path / "tiny-random.yaml", shown))
    assert again == chosen


def test_dump_is_plain_yaml() -> None:
    data = yaml.safe_load(preset.dump(preset.load("tiny-random")))
    assert data["window"]["selected"] == 64
    assert "name" not in data


def test_heads_of_one_model_do_not_vote_in_another(tmp_path: Path) -> None:
    assert preset.load("consensus").score["heads"] == preset.load().score["heads"]
    assert "heads" not in preset.load("consensus", ["model=random:llama"]).score
    kept = preset.load("consensus", ["model=random:llama", "score.heads=[[0, 1]]"]).score
    assert kept["heads"] == [[0, 1]]
    same = tmp_path / "same.yaml"
    same.write_text("extends: smollm2-135m\nwindow: {selected: 256}\n", "utf-8")
    assert preset.load(str(same)).score["heads"] == preset.load().score["heads"]


def test_a_selector_for_itself_hears_all_heads() -> None:
    assert resolve(preset.load()).method.score.heads
    assert not resolve(preset.load(overrides=["selector.name=topk"])).method.score.heads
