"""Readers of the public benchmarks' files: prompts, records and invalid lines."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_rows import longbench_row, records, rows_of, stars_row, whole, write

from esa_cli.errors import DocumentError
from esa_cli.evaluation import metrics
from esa_cli.evaluation.bench import bench_run, benchmarks
from esa_cli.evaluation.bench.bench_run import BenchRecordSelection, choose_tasks
from esa_cli.evaluation.bench.benchmarks import BenchRecord


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


@pytest.mark.parametrize("second", [longbench_row("a"), longbench_row("b", input="")])
def test_records_of_one_name_or_without_a_question_are_refused(
    second: dict[str, Any], tmp_path: Path
) -> None:
    write(tmp_path / "qasper.jsonl", [longbench_row("a"), second])
    selection = BenchRecordSelection(benchmarks.BENCHMARKS["longbench"], tmp_path, ["qasper"])
    if second["_id"] == "b":
        read = selection.benchmark.read
        blank = [replace(record, question=" ") for record in read(tmp_path, "qasper")]
        benchmark = replace(selection.benchmark, read=lambda folder, task: iter(blank))
        selection = replace(selection, benchmark=benchmark)
    with pytest.raises(DocumentError):
        selection.check_and_hash_records()


def test_all_of_a_record_but_its_name_counts() -> None:
    record = BenchRecord("longbench", "qasper", "0", "b", "d0", "q", ("yes",), 8)
    assert replace(record, id="another").compute_hash() == record.compute_hash()
    changes = {"before": "B", "document": "D", "question": "Q", "prime": "p", "chat": False}
    changes |= {"answers": ("no",), "longest": 9, "data": {"classes": ["a"]}}
    changed = [replace(record, **{name: value}) for name, value in changes.items()]
    changed.append(replace(record, before="bd0", document=""))  # it is cut elsewhere
    assert record.compute_hash() not in {other.compute_hash() for other in changed}


def test_table_has_means_averages_and_counts() -> None:
    rows = [*rows_of("ours", qasper=[0.5, 1.0], trec=[0.0]), *rows_of("theirs", trec=[1.0, 0.5])]
    longbench = benchmarks.BENCHMARKS["longbench"]
    scores = bench_run.compute_scores(longbench, rows)
    headers, lines = bench_run.make_score_table(longbench, scores)
    assert headers == ["task", "records", "ours", "theirs"]
    assert lines == [
        ["Qasper", "2 / 0 of 200", "75.00", "-"],
        ["TREC", "1 / 2 of 200", "0.00", "75.00"],
        # (75 + 0) / 2: each task counts once, however many records
        ["LongBench average", "2 / 1 of 16 tasks", "37.50", "75.00"],
    ]
    data = scores["ours"]
    assert data["tasks"]["qasper"] == {"score": 75.0, "records": 2, "of": 200}
    assert data["averages"] == {"LongBench": {"score": 37.5, "tasks": 2, "of": 16}}


SCORES: dict[str, list[tuple[str, Any, float]]] = {
    "compute_qa_f1": [
        # said: cat sat on mat; right: cat on mat. 3 in common: 2 * 3/4 * 1 / (3/4 + 1) = 6/7
        ("The cat sat on a mat.", "cat on the MAT", 6 / 7),
        # bags: one yes in common of two said: 2 * 1/2 * 1 / (1/2 + 1) = 2/3
        ("yes, yes", "Yes.", 2 / 3),
        ("U.S.", "us", 1.0),
        # nothing is left of either
        ("the", "", 0.0),
    ],
    "compute_code_similarity": [
        # the first line that is no fence and no comment is `x = 1`: 2 * 4 letters of 5 + 5
        ("\n```python\n# note\n// note\nx = 1\ny = 3", "x = 2", 0.8),
        # 2 * 2 of 2 + 4 is 66.67 per cent, in whole per cent 67
        ("ab", "abcd", 0.67),
        # difflib takes the longest block, PP, and nothing lies right of it in both: 2 * 2 of 20.
        # The longest common subsequence, abcd, would give 0.4.
        ("a1b2c3d4PP", "PPa5b6c7d8", 0.2),
        ("# only a comment", "x", 0.0),
        # indentation counts: 2 * 1 of 1 + 5
        ("x", "    x", 0.33),
    ],
    "compute_rouge_l": [
        # the, sat: 2 of 3 and 2 of 3
        ("the cat sat", "the dog sat", 2 / 3),
        # a c of one sentence and b d of the other: all four words are common
        ("a c. b d", "a b c d", 1.0),
        # distinct words: 1 of 1 said, 1 of 2 right: 2 * 1 * 1/2 / (3/2)
        ("a a a", "a b", 2 / 3),
        # the line break behind the full stop is a word of its own: 1 of 2, 1 of 1
        ("a.\n", "a", 2 / 3),
        # of `y x` and `x y` the common word is y, not x; so x is never common: 1 of 2, 1 of 2
        ("y x. y", "x y", 1 / 2),
        # order counts within a sentence: b c, or c d; not all
        ("c d b", "b c d", 2 / 3),
        ("", "a", 0.0),
    ],
    "compute_share_of_right_numbers": [
        ("3 or 12, I say 3", "3", 2 / 3),
        ("13", "3", 0),
        ("none", "3", 0),
    ],
    "score_first_integer": [
        ("The pass key is 08335, I think; 1.", ["08335"], 1),
        *((output, ["08335"], 0) for output in ("8335", "12 08335", "")),
    ],
    "score_first_number": [
        *((output, ["98"], 1) for output in ("It is 98.", "98.0")),
        *((output, ["98"], 0) for output in ("98.5", "97, or 98", "many")),
    ],
}


@pytest.mark.parametrize("metric", SCORES)
def test_scores_worked_out_by_hand(metric: str) -> None:
    for output, gold, score in SCORES[metric]:
        # ROUGE adds 1e-8 to a denominator
        found = getattr(metrics, metric)(output, gold)
        assert found == pytest.approx(score, abs=1e-7), output


def test_classification() -> None:
    names = ("Date", "Speed", "person", "Title of a person")
    assert metrics.score_named_classes("Date or Speed", "Date", names) == 1 / 2
    assert metrics.score_named_classes("Speed", "Date", names) == 0
    # `person` is named as well, but as a part of the right name
    assert metrics.score_named_classes("Title of a person", "Title of a person", names) == 1
    # a, b and `a b c` are named; taking a out of the list spares b: one of two is right
    assert metrics.score_named_classes("a b c", "a b c", ("a", "b", "a b c")) == 1 / 2


@pytest.mark.parametrize(
    ("output", "right"),
    [
        ("B. the cook", True),
        # it begins with B
        ("Because of A", True),
        ("the cook", True),
        ("The answer is: B", True),
        ("The answer is the cook.", True),
        # what is called the answer comes before any letter
        ("The answer is C, not B", False),
        ("I would say C or B", False),
        ("  ", False),
    ],
)
def test_choice(output: str, right: bool) -> None:
    assert metrics.score_multiple_choice_output(output, ("the cook", "B")) == right


def test_code_debug() -> None:
    said = ("B. func_a", "**The error is** `func_a`", "The answer is C")
    found = [metrics.score_code_debug_output(output, ("func_a", "B")) for output in said]
    assert found == [True, True, False]


def test_stars_are_the_numbers_of_the_list() -> None:
    prime = '```json\n{"little_penguin": ['
    assert metrics.parse_star_counts(f"{prime}15, 117, 42]}}\n```\nThree.", 32) == {15, 117, 42}
    assert metrics.parse_star_counts(f"{prime}15, 117, 42]}}", 2) == {15, 117}
    assert metrics.parse_star_counts(f"{prime}3, 4]}}\n[9]", 32) == {3, 4}
    assert metrics.parse_star_counts(f"{prime}15, 117", 32) == {15, 117}
    assert metrics.parse_star_counts(f"{prime}none", 32) == set()
    assert metrics.parse_star_counts("15, 117", 32) == set()


def test_reasoning_pays_less_with_the_mistake() -> None:
    # 1: right alone, 1. 2 with 6: 0.5. 3 without, 7 said: 0.25. 4: neither, 0. Of four.
    assert metrics.score_star_counts("little_p: [1, 2, 6, 7]", "1234", (5, 6, 7, 8)) == 1.75 / 4
