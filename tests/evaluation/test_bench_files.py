"""Readers of the public benchmarks' files: prompts, records and invalid lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench_rows import longbench_row, records, stars_row, whole, write

from esa_cli.errors import DocumentError
from esa_cli.evaluation.bench import benchmarks
from esa_cli.evaluation.bench.bench_run import choose_tasks


def test_longbench_prompts_and_records(tmp_path: Path) -> None:
    write(tmp_path / "data/hotpotqa.jsonl", [longbench_row("a"), longbench_row("b")])
    first, second = records("longbench", tmp_path, "hotpotqa")
    assert whole(first).startswith("Answer the question based on the given passages. Only give me")
    assert whole(first).endswith("other words.\n\nQuestion: Who opens the gate?\nAnswer:")
    assert first.document == "The keeper opens the gate. " * 30
    assert (first.id, second.id, first.longest, first.chat) == ("a", "b", 32, True)
    assert first.answers == ("the keeper", "keeper")
    # the best over the answers
    assert benchmarks.BENCHMARKS["longbench"].score(first, "Keeper.") == 1
    assert len(records("longbench", tmp_path, "hotpotqa", limit=1)) == 1


@pytest.mark.parametrize(
    "line",
    [
        b'{"input": "Who?", "cont',
        b"[1, 2]",
        b"[" * 100_000,
        b"\xff\xfe\x00",
        json.dumps(longbench_row("a", context=3)).encode(),
        json.dumps(longbench_row("a", answers=[])).encode(),
        b'{"context": "a lone surrogate \\ud83d", "input": "i", "answers": ["a"]}',
        b'{"context": "c", "input": "i", "answers": ["\\ude00"]}',
    ],
)
def test_an_invalid_line_is_named(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "hotpotqa.jsonl"
    path.write_bytes(json.dumps(longbench_row("a")).encode() + b"\n\n" + line + b"\n")
    with pytest.raises(DocumentError) as caught:
        records("longbench", tmp_path, "hotpotqa")
    assert f"{path}, line 3: " in caught.value.message


def test_infinitebench_prompts(tmp_path: Path) -> None:
    options = ["the cook", "the keeper", "nobody", "a fox"]
    kv = {"context": '{"k-1": "v"}', "input": '\nKey: "k-1"\nThe value is: ', "answer": ["v"]}
    write(tmp_path / "kv_retrieval.jsonl", [kv])
    find = {"context": "[1, 9]", "input": "The largest number of the list is: ", "answer": 9}
    write(tmp_path / "math_find.jsonl", [find])
    book = {"context": "A book.", "input": "Who?", "answer": "the keeper", "options": options}
    write(tmp_path / "longbook_choice_eng.jsonl", [book])
    write(tmp_path / "code_debug.jsonl", [book | {"answer": ["a fox", "D"]}])
    write(tmp_path / "passkey.jsonl", [{"context": "c", "input": "What?", "answer": "083"}])
    score = benchmarks.BENCHMARKS["infinitebench"].score
    key, number, choice, debug, passkey = records(
        "infinitebench", tmp_path,
        "kv_retrieval", "math_find", "longbook_choice_eng", "code_debug", "passkey",
    )  # fmt: skip
    assert (key.longest, number.longest) == (100, 32)
    assert score(key, 'is "v".') == 1
    assert score(number, "9") == 1
    assert choice.answers == ("the keeper", "B")
    assert whole(choice).endswith("\nA. the cook\nB. the keeper\nC. nobody\nD. a fox")
    assert "Question: Who?" in choice.question
    assert score(choice, "B") == 1
    assert debug.answers == ("a fox", "D")
    assert score(debug, "D. a fox") == 1
    assert whole(passkey).endswith("\n\nc\n\nWhat?")
    assert score(passkey, "It is 083.") == 1


@pytest.mark.parametrize(
    ("task", "changes"),
    [
        ("longbook_choice_eng", {"answer": "a hen"}),
        ("longbook_choice_eng", {"options": ["x"]}),
        ("kv_retrieval", {"input": "no key"}),
        ("math_find", {"input": "how many", "answer": 9}),
        ("math_find", {"input": "The largest number of: "}),
        ("passkey", {"context": None}),
    ],
)
def test_invalid_infinitebench_rows(task: str, changes: dict[str, Any], tmp_path: Path) -> None:
    row = {"context": "c", "input": "i", "answer": "x", "options": ["x", "y", "z", "w"]}
    write(tmp_path / f"{task}.jsonl", [row | changes])
    with pytest.raises(DocumentError, match="line 1"):
        records("infinitebench", tmp_path, task)


def test_counting_stars(tmp_path: Path) -> None:
    end = "128000_32_32.jsonl"
    start = "test_data/Counting_Stars_EN_multi-evidence-retrieval-"
    write(tmp_path / f"{start}searching_{end}", [stars_row(False)])
    write(tmp_path / f"{start}reasoning_{end}", [stars_row(True)])
    names = ["searching-128k-32-32", "reasoning-128k-32-32"]
    assert choose_tasks(benchmarks.BENCHMARKS["counting-stars"], tmp_path, None) == names
    search, reason = records("counting-stars", tmp_path, *names)
    assert search.question == "\n\n\n\nPlease help the little penguin."
    assert search.document.endswith("The little penguin counted 42 ★\n")
    assert search.prime == '```json\n{"little_penguin": ['
    score = benchmarks.BENCHMARKS["counting-stars"].score
    assert score(search, "15, 42, 5]}") == 2 / 3
    for after in (
        '\n```\n\n```json\n{"little_penguin": [1, 1',
        '\nThe "little_penguin" counted ★.',
    ):
        assert score(search, "15, 117, 42]}" + after) == 1, "the list that the prompt opened"
    # 15 without 5: 1; 117 with 100: 0.5; 40 alone: 0.25. Of three; a fourth number is not counted.
    assert score(reason, "15, 117, 100]}") == (1 + 0.5) / 3
    assert score(reason, "15, 40, 100, 117]}") == (1 + 0.25 + 0.25) / 3


class Letters:
    """A tokenizer whose tokens are letters."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, tokens: list[int]) -> str:
        return "".join(map(chr, tokens))


@pytest.fixture
def needle_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(benchmarks, "load_gpt4_tokenizer", Letters)
    places = ["Hell", "Emerald", "Sand", "Emerald", "Fog"]
    things = ["Bubble", "Pearl", "Shard", "Clover", "Pearl"]
    rows = [
        {
            "arg1": place,
            "arg2": thing,
            "needle": f"Hidden on {place} is {thing}.",
            "retrieval_question": f"What is hidden on {place}? Please answer in the format "
            f"'Hidden on {place} is ______.'",
            "language": "English",
        }
        for place, thing in zip(places, things, strict=True)
    ]
    write(tmp_path / "needles.jsonl", rows)
    write(tmp_path / "PaulGrahamEssays.jsonl", [{"text": letter * 900} for letter in "abcdefg"])
    return tmp_path


def test_needlebench_hides_three_needles_unlike_each_other(needle_files: Path) -> None:
    made = records("needlebench", needle_files, "m-rt-4k")
    assert len(made) == len({record.document for record in made}) == 10
    for record in made:
        # 4000 less the buffer of 1000, needles and their line breaks included
        assert len(record.document) == 3000
        assert len(set(record.answers)) == 3
        found = [line for line in record.document.split("\n") if line.startswith("Hidden")]
        assert [needle.split()[-1] for needle in found] == [f"{a}." for a in record.answers]
        length = 3000 - sum(len(needle) + 2 for needle in found)
        gone = 0
        for needle, depth in zip(found, (25, 50, 75), strict=True):
            assert record.document.index(f"\n{needle}\n") - gone == int(length * depth / 100)
            gone += len(needle) + 2
    assert records("needlebench", needle_files, "m-rt-4k") == made, "the same each time"
