"""Public benchmarks: readers of the official shapes, the loop, the tables and the command.

All data are invented here, in the shapes the benchmarks publish theirs in.
"""

from __future__ import annotations

import json
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from esa_cli import models
from esa_cli.__main__ import main
from esa_cli.apps.cli.commands import bench_output as bench_table
from esa_cli.apps.cli.terminal import print_table
from esa_cli.errors import DocumentError, LengthError, UsageError
from esa_cli.evaluation import bench
from esa_cli.evaluation.bench import BenchRecord, download, needlebench, ruler
from esa_cli.evaluation.bench import data_files as files
from esa_cli.evaluation.bench import needlebench_haystack as haystack
from esa_cli.evaluation.bench import task_selection as order
from esa_cli.evaluation.bench.bench_runner import KEY, BenchReply, run
from esa_cli.evaluation.bench.session_asker import RecordAsker
from esa_cli.evaluation.report import bench_table as table
from esa_cli.qa import session
from esa_cli.qa.preset import load
from esa_cli.system.jsonl import Journal

TINY = ["--preset", "tiny-random", "--device", "cpu", "--dtype", "float32"]


def write(path: Path, rows: Sequence[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")


def longbench_row(name: str, **changes: Any) -> dict[str, Any]:
    row = {
        "input": "Who opens the gate?",
        "context": "The keeper opens the gate. " * 30,
        "answers": ["the keeper", "keeper"],
        "length": 150,
        "dataset": "hotpotqa",
        "language": "en",
        "all_classes": None,
        "_id": name,
    }
    return row | changes


def records(name: str, folder: Path, *tasks: str, limit: int | None = None) -> list[BenchRecord]:
    return list(bench.find(name).load(folder, tasks, limit))


def whole(record: BenchRecord) -> str:
    return record.before + record.document + record.question


# -- every benchmark


@pytest.mark.parametrize("name", bench.BENCHMARKS)
def test_tasks_have_names_of_their_own(name: str) -> None:
    names = [task.name for task in bench.BENCHMARKS[name].TASKS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", bench.BENCHMARKS)
def test_a_missing_file_is_named_with_its_source(name: str, tmp_path: Path) -> None:
    benchmark = bench.BENCHMARKS[name]
    assert benchmark.there(tmp_path) == []
    with pytest.raises(DocumentError, match="is missing") as caught:
        records(name, tmp_path, benchmark.TASKS[0].name)
    assert str(tmp_path) in caught.value.message
    assert benchmark.SOURCE in caught.value.hint


def test_an_unknown_benchmark_names_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        bench.find("longbensh")
    assert "longbench" in caught.value.hint


# -- LongBench


def test_longbench_prompts_and_records(tmp_path: Path) -> None:
    write(tmp_path / "data/hotpotqa.jsonl", [longbench_row("a"), longbench_row("b")])
    first, second = records("longbench", tmp_path, "hotpotqa")
    assert whole(first).startswith("Answer the question based on the given passages. Only give me")
    assert whole(first).endswith("other words.\n\nQuestion: Who opens the gate?\nAnswer:")
    assert first.document == "The keeper opens the gate. " * 30
    assert (first.id, second.id, first.longest, first.chat) == ("a", "b", 32, True)
    assert first.answers == ("the keeper", "keeper")
    score = bench.find("longbench").score
    assert score(first, "Keeper.") == 1  # the best over the answers
    assert len(records("longbench", tmp_path, "hotpotqa", limit=1)) == 1


def test_longbench_few_shot_and_code_take_no_chat_template(tmp_path: Path) -> None:
    code = longbench_row("c", input="", context="x = 1\n", answers=["    y = 2"])
    write(tmp_path / "lcc.jsonl", [code])
    write(tmp_path / "repobench-p.jsonl", [code | {"input": "z = 3\n"}])
    classes = ["Date", "Speed"]
    trec = longbench_row("t", input="Question: When?\nType:", answers=["Date"], all_classes=classes)
    write(tmp_path / "trec.jsonl", [trec])
    lcc, repo, few = records("longbench", tmp_path, "lcc", "repobench-p", "trec")
    assert [record.chat for record in (lcc, repo, few)] == [False] * 3
    assert whole(lcc) == "Please complete the code given below. \nx = 1\nNext line of code:\n"
    assert whole(repo).endswith("x = 1\nz = 3\nNext line of code:\n")
    score = bench.find("longbench").score
    assert score(lcc, "    y = 2\n    z") == 1
    assert score(few, "\nDate\nQuestion: how fast?\nType: Speed") == 1
    assert bench.find("longbench").there(tmp_path) == ["trec", "lcc", "repobench-p"]


def test_longbench_sample_of_all_tasks_in_one_file(tmp_path: Path) -> None:
    context = "A gate. " * 5
    row = {
        "task": "qasper", "prompt": f"Read {context}and answer: Which?", "question": "Which?",
        "context_span": [5, 5 + len(context)], "answers": ["a gate"],
        "official_prompt_if_different": None,
    }  # fmt: skip
    write(tmp_path / "longbench_mini.jsonl", [row, row | {"official_prompt_if_different": "..."}])
    as_run, official = records("longbench", tmp_path, "qasper")
    assert (whole(as_run), as_run.document) == (row["prompt"], context)
    assert official.document == context
    assert whole(official).startswith("You are given a scientific article and a question.")
    assert whole(official).endswith("\n\nQuestion: Which?\n\nAnswer:")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"input": "Who?", "cont', "not a JSON object"),
        ("[1, 2]", "not a JSON object"),
        (json.dumps(longbench_row("a", context=3)), "'context' must be a text"),
        (json.dumps(longbench_row("a", answers=[])), "'answers' must be"),
        (json.dumps({"input": "Who?"}), "'context' must be a text"),
    ],
)
def test_a_broken_line_is_named(line: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "hotpotqa.jsonl"
    path.write_text(json.dumps(longbench_row("a")) + f"\n\n{line}\n", "utf-8")
    with pytest.raises(DocumentError) as caught:
        records("longbench", tmp_path, "hotpotqa")
    assert f"{path}, line 3" in caught.value.message
    assert words in caught.value.message


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    line = json.dumps(longbench_row("a")).encode() + b"\n"
    (tmp_path / "hotpotqa.jsonl").write_bytes(20 * line + b"\xff\xfe\x00")
    with pytest.raises(DocumentError, match="line 21: not UTF-8") as caught:
        records("longbench", tmp_path, "hotpotqa")
    assert "in position 0" in caught.value.message


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"[" * 100_000, "not a JSON object"),
        (b'{"context": "c \\ud83d", "input": "i"}', "'context' must be Unicode text"),
        (
            b'{"context": "c", "input": "i", "answers": ["\\ude00"]}',
            "'answers' must be Unicode text",
        ),
    ],
)
def test_a_line_that_no_tokenizer_takes_is_named(line: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "qasper.jsonl").write_bytes(line)
    with pytest.raises(DocumentError, match=f"line 1: {words}"):
        records("longbench", tmp_path, "qasper")
    (tmp_path / "array.json").write_bytes(b"[" * 100_000)
    with pytest.raises(DocumentError, match="cannot be read"):
        files.array(tmp_path / "array.json")


def test_a_record_that_asks_nothing_is_found_before_any_is_asked(tmp_path: Path) -> None:
    context = "A gate. " * 5
    row = {"task": "qasper", "prompt": context, "context_span": [0, len(context)], "answers": "a"}
    write(tmp_path / "longbench_mini.jsonl", [row])
    with pytest.raises(DocumentError, match="qasper, record '1' asks nothing"):
        order.TaskSelection(bench.find("longbench"), tmp_path, ["qasper"]).survey()


def test_a_sample_of_longbench_has_the_tasks_that_are_in_it(tmp_path: Path) -> None:
    context = "A gate. " * 5
    row = {"prompt": context + "?", "context_span": [0, len(context)], "answers": "a"}
    write(tmp_path / "longbench_mini.jsonl", [row | {"task": "lcc"}, row | {"task": "qasper"}])
    write(tmp_path / "trec.jsonl", [longbench_row("a")])
    assert bench.find("longbench").there(tmp_path) == ["qasper", "trec", "lcc"]


@pytest.mark.parametrize("outputs", [[""], ["1234", " "]])
def test_an_empty_answer_would_be_in_every_output(outputs: list[str], tmp_path: Path) -> None:
    row = {"input": NIAH, "outputs": outputs, "length": 9}
    write(tmp_path / "niah_single_1" / "validation.jsonl", [row])
    with pytest.raises(DocumentError, match="'outputs' must have no empty text"):
        records("ruler", tmp_path, "niah_single_1")


# -- InfiniteBench


def test_infinitebench_prompts(tmp_path: Path) -> None:
    options = ["the cook", "the keeper", "nobody", "a fox"]
    kv = {"context": '{"k-1": "v"}', "input": '\nKey: "k-1"\nThe value is: ', "answer": ["v"]}
    write(tmp_path / "kv_retrieval.jsonl", [kv])
    find = {"context": "[1, 9]", "input": "The largest number of the list is: ", "answer": 9}
    write(tmp_path / "math_find.jsonl", [find])
    book = {"context": "A book.", "input": "Who?", "answer": "the keeper", "options": options}
    write(tmp_path / "longbook_choice_eng.jsonl", [book])
    write(tmp_path / "code_debug.jsonl", [book | {"answer": ["a fox", "D"]}])
    score = bench.find("infinitebench").score
    key, number, choice, debug = records(
        "infinitebench", tmp_path, "kv_retrieval", "math_find", "longbook_choice_eng", "code_debug"
    )
    assert key.before == (
        'Extract the value corresponding to the specified key "k-1" in the JSON object below.\n\n'
    )
    assert key.longest == 100
    assert score(key, 'is "v".') == 1
    assert number.before == "What is the largest number in the following list?\n\n"
    assert score(number, "9") == 1
    assert choice.answers == ("the keeper", "B")
    assert whole(choice).endswith("\nA. the cook\nB. the keeper\nC. nobody\nD. a fox")
    assert "Question: Who?" in choice.question
    assert score(choice, "B") == 1
    assert debug.answers == ("a fox", "D")
    assert debug.question.endswith("or you need more information.")
    assert score(debug, "D. a fox") == 1


def test_infinitebench_compact_form_is_written_out(tmp_path: Path) -> None:
    row = {"answer": "083", "n_noise_before": 2, "n_noise_after": 1, "input": "What is it?"}
    write(tmp_path / "infinitebench_passkey.jsonl", [row])
    write(tmp_path / "number_string.jsonl", [row])
    key, digits = records("infinitebench", tmp_path, "passkey", "number_string")
    noise = "The grass is green. The sky is blue. The sun is yellow. Here we go. "
    noise += "There and back again.\n"
    hidden = "The pass key is 083. Remember it. 083 is the pass key.\n"
    assert key.document == noise * 2 + hidden + noise
    assert "The sequence of digits is 083. Remember it." in digits.document
    assert key.before.count("memorize") == 1
    assert digits.before.count("memorize") == 0
    assert bench.find("infinitebench").score(key, "It is 083.") == 1


@pytest.mark.parametrize(
    ("task", "changes", "words"),
    [
        ("longbook_choice_eng", {"answer": "a hen"}, "not among the options"),
        ("longbook_choice_eng", {"options": ["the keeper"]}, "not four"),
        ("kv_retrieval", {"input": "no key"}, "names no key"),
        ("math_find", {"input": "how many", "answer": 9}, "which number is wanted"),
        ("math_find", {"input": "The largest number of: "}, "'answer' is not a number"),
        ("passkey", {"context": None}, "'context' must be a text"),
    ],
)
def test_infinitebench_rows_that_do_not_hold(
    task: str, changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    row = {"context": "c", "input": "i", "answer": "x", "options": ["x", "y", "z", "w"]}
    write(tmp_path / f"{task}.jsonl", [row | changes])
    with pytest.raises(DocumentError, match=words):
        records("infinitebench", tmp_path, task)


# -- RULER

NIAH = (
    "Some special magic numbers are hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the numbers afterwards.\nHay. One of the special magic numbers for a is:"
    " 12. Hay.\nWhat are all the special magic numbers for a mentioned in the provided text?"
)
NIAH_PREFIX = " The special magic numbers for a mentioned in the provided text are"


def test_ruler_cuts_the_question_off_and_puts_words_into_the_mouth(tmp_path: Path) -> None:
    row = {"index": 7, "input": NIAH, "outputs": ["12", "15"], "length": 4000}
    new = row | {"answer_prefix": NIAH_PREFIX}
    old = row | {"input": NIAH + NIAH_PREFIX}
    write(tmp_path / "niah_multivalue/validation.jsonl", [new, old, row])
    first, second, bare = records("ruler", tmp_path, "niah_multivalue")
    for record in (first, second, bare):
        assert whole(record) == NIAH
        assert record.question.startswith("What are all the special magic numbers for a")
    assert first.prime == second.prime == NIAH_PREFIX
    assert bare.prime == ""
    assert [record.id for record in (first, second)] == ["1", "2"], "index is not a name"
    assert first.data["length"] == 4096, "rounded up to a power of two"
    assert bench.find("ruler").score(first, "12 and 13") == 1 / 2


def test_ruler_questions_are_right_with_any_answer(tmp_path: Path) -> None:
    asks = "Answer the question based on the given documents."
    row = {"input": f"{asks} Hay.\n\n{asks} Question: Who?", "outputs": ["x", "y"], "length": 9}
    write(tmp_path / "qa_1/validation.jsonl", [row])
    (record,) = records("ruler", tmp_path, "qa_1")
    assert record.question == f"{asks} Question: Who?"
    assert ruler.score(record, "Y") == 1


@pytest.mark.parametrize("begin", ["[INST] ", "<|begin_of_text|>"])
def test_ruler_refuses_files_with_a_chat_template_in_them(begin: str, tmp_path: Path) -> None:
    row = {"index": 0, "input": begin + NIAH, "outputs": ["12"], "length": 9}
    write(tmp_path / "niah_single_1/validation.jsonl", [row])
    with pytest.raises(DocumentError) as caught:
        records("ruler", tmp_path, "niah_single_1")
    assert "--model_template_type base" in caught.value.hint


# -- Counting-Stars


def stars_row(reasoning: bool) -> dict[str, Any]:
    right, mistaken = [15, 117, 42], [5, 100, 40]
    asked = "\n\n\n\nPlease help the little penguin."
    text = ""
    for a, r in zip(right, mistaken, strict=True):
        text += f"An essay. \nThe little penguin counted {r if reasoning else a} ★"
        again = ", but found that a mistake had been made, so the counting was done again, and this"
        text += f"{again} time {a} ★ was counted correctly.\n" if reasoning else "\n"
    return {
        "question": text + asked,
        "context_size": 3200,
        "retrieval_question": asked,
        "reference_counting_results": right,
        "parameters": {"temperature": 0.0},
    }


def test_counting_stars(tmp_path: Path) -> None:
    end = "128000_32_32.jsonl"
    start = "test_data/Counting_Stars_EN_multi-evidence-retrieval-"
    write(tmp_path / f"{start}searching_{end}", [stars_row(False)])
    write(tmp_path / f"{start}reasoning_{end}", [stars_row(True)])
    names = ["searching-128k-32-32", "reasoning-128k-32-32"]
    assert bench.find("counting-stars").there(tmp_path) == names
    search, reason = records("counting-stars", tmp_path, *names)
    assert search.question == "\n\n\n\nPlease help the little penguin."
    assert search.document.endswith("The little penguin counted 42 ★\n")
    assert search.prime == '```json\n{"little_penguin": ['
    score = bench.find("counting-stars").score
    assert score(search, "15, 42, 5]}") == 2 / 3
    for behind in (
        '\n```\n\n```json\n{"little_penguin": [1, 1',
        '\nThe "little_penguin" counted ★.',
    ):
        assert score(search, "15, 117, 42]}" + behind) == 1, "the list that the prompt opened"
    # 15 without 5: 1; 117 with 100: 0.5; 40 alone: 0.25. Of three; a fourth number is not counted.
    assert score(reason, "15, 117, 100]}") == (1 + 0.5) / 3
    assert score(reason, "15, 40, 100, 117]}") == (1 + 0.25 + 0.25) / 3


def test_counting_stars_that_do_not_hold(tmp_path: Path) -> None:
    path = tmp_path / "Counting_Stars_EN_reasoning_256000_8_32.jsonl"
    write(path, [stars_row(False)])
    with pytest.raises(DocumentError, match="0 mistaken counts for 3 right ones"):
        records("counting-stars", tmp_path, "reasoning-256k-8-32")
    write(path, [stars_row(True) | {"retrieval_question": "another"}])
    with pytest.raises(DocumentError, match="does not end with"):
        records("counting-stars", tmp_path, "reasoning-256k-8-32")


# -- NeedleBench


class Letters:
    """A tokenizer whose tokens are letters."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, tokens: list[int]) -> str:
        return "".join(map(chr, tokens))


@pytest.fixture
def needle_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(needlebench, "gpt4", Letters)
    places = ["Hell", "Emerald", "Sand", "Emerald", "Fog"]
    things = ["Bubble", "Pearl", "Shard", "Clover", "Pearl"]
    write(
        tmp_path / "needles.jsonl",
        [
            {
                "arg1": place,
                "arg2": thing,
                "needle": f"Hidden on {place} is {thing}.",
                "retrieval_question": f"What is hidden on {place}? Please answer in the format "
                f"'Hidden on {place} is ______.'",
                "language": "English",
            }
            for place, thing in zip(places, things, strict=True)
        ],
    )
    write(tmp_path / "PaulGrahamEssays.jsonl", [{"text": letter * 900} for letter in "abcdefg"])
    chain = {
        "derivation_count": 2, "derivations": ["A is B.", "B is C."], "question": "What is A? ",
        "answer": "C indeed",
    }  # fmt: skip
    (tmp_path / "multi_needle_reasoning_en.json").write_text(json.dumps([chain]), "utf-8")
    return tmp_path


def test_needlebench_hides_three_needles_unlike_each_other(needle_files: Path) -> None:
    made = records("needlebench", needle_files, "m-rt-4k")
    assert len(made) == 10
    assert len({record.document for record in made}) == 10
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


def test_needlebench_depths(needle_files: Path) -> None:
    made = records("needlebench", needle_files, "s-rt-4k")
    assert len(made) == 110
    for at, record in enumerate(made):
        needle = record.data["needle"]
        head, tail = record.document.split(f"\n{needle}\n")
        length = 4000 - 600 - len(needle) - 2
        assert len(head) + len(tail) == length
        assert len(head) == int(length * (needlebench.DEPTHS[at // 10] / 100))


def test_needlebench_chains_stand_a_tenth_and_a_needle_apart(needle_files: Path) -> None:
    first = records("needlebench", needle_files, "m-rs-4k", limit=11)[10]  # at 10 per cent
    length = 3400 - 2 * len("\nA is B.\n")
    head, between, _ = first.document.replace("\nB is C.\n", "\nA is B.\n").split("\nA is B.\n")
    assert len(head) == int(length * 0.1)
    assert len(between) == int(len(head) + 9 + length * 0.1) - len(head)
    assert first.answers == ("C indeed",)
    assert needlebench.score(first, "c") == 1 / 2


def test_needlebench_prompts(needle_files: Path) -> None:
    (record,) = records("needlebench", needle_files, "m-rt-8k", limit=1)
    first = record.question.partition("hidden on ")[2].partition("?")[0]
    assert record.question.startswith(f"\n\nNow, the questions are: What is hidden on {first}?、")
    assert record.question.endswith(" is ______'\n")
    assert "?Before answering, please consider what in the document is most" in record.question
    assert f"in the format of 'Hidden on {first} is ______、Hidden on" in record.question
    assert needlebench.score(record, record.answers[1]) == 1 / 3
    (single,) = records("needlebench", needle_files, "s-rt-4k", limit=1)
    assert single.question.endswith(f"'Hidden on {single.data['needle'].split()[2]} is ______.'")
    assert "? Before answering" in single.question
    assert needlebench.score(single, single.answers[0]) == 1


def test_needlebench_rows_that_do_not_hold(needle_files: Path) -> None:
    row = {"arg1": "a", "arg2": "b", "needle": "n", "retrieval_question": "What?"}
    write(needle_files / "needles.jsonl", [row | {"language": "English"}])
    with pytest.raises(DocumentError, match="line 1"):
        records("needlebench", needle_files, "m-rt-4k")
    write(needle_files / "needles.jsonl", [row | {"language": "Chinese"}])
    with pytest.raises(DocumentError, match="no English needles"):
        records("needlebench", needle_files, "m-rt-4k")


def test_gpt4_s_tokens_take_tiktoken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(UsageError, match="needs tiktoken"):
        haystack.gpt4()

    def unreachable(name: str) -> None:
        raise OSError("no route to the host")

    fake = SimpleNamespace(encoding_for_model=unreachable)
    monkeypatch.setitem(sys.modules, "tiktoken", fake)
    with pytest.raises(DocumentError, match="no route"):
        haystack.gpt4()


# -- what is run


def test_tasks_are_those_asked_or_those_there(tmp_path: Path) -> None:
    longbench = bench.find("longbench")
    with pytest.raises(DocumentError, match="none of the benchmark's files"):
        order.tasks(longbench, tmp_path, None)
    for task in ("trec", "qasper"):
        write(tmp_path / f"{task}.jsonl", [longbench_row("a", all_classes=["x"])])
    assert order.tasks(longbench, tmp_path, None) == ["qasper", "trec"], "in the table's order"
    assert order.tasks(longbench, tmp_path, ["trec", "lcc"]) == ["trec", "lcc"]
    with pytest.raises(UsageError) as caught:
        order.tasks(longbench, tmp_path, ["hotpot"])
    assert "hotpotqa" in caught.value.hint
    with pytest.raises(DocumentError, match="there is no folder"):
        order.tasks(longbench, tmp_path / "nowhere", None)
    asked = order.TaskSelection(longbench, tmp_path, ["qasper", "trec"])
    assert len(asked.left_out()) == 14


def test_two_records_of_one_name_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "qasper.jsonl", [longbench_row("a"), longbench_row("a")])
    asked = order.TaskSelection(bench.find("longbench"), tmp_path, ["qasper"])
    with pytest.raises(DocumentError, match="two records 'a'"):
        asked.survey()


def test_files_without_records_are_refused(tmp_path: Path) -> None:
    longbench = bench.find("longbench")
    write(tmp_path / "qasper.jsonl", [longbench_row("a")])
    for content in ("", "\n\n"):
        (tmp_path / "trec.jsonl").write_text(content)
        with pytest.raises(DocumentError, match=r"trec\.jsonl holds no records"):
            order.TaskSelection(longbench, tmp_path, ["qasper", "trec"]).survey()
    context = "A gate. " * 5
    row = {"prompt": context + "?", "context_span": [0, len(context)], "answers": "a"}
    write(tmp_path / "mini" / "longbench_mini.jsonl", [row | {"task": "qasper"}])
    with pytest.raises(DocumentError, match="holds no records of trec, lcc"):
        order.TaskSelection(longbench, tmp_path / "mini", ["qasper", "trec", "lcc"]).survey()
    (tmp_path / "array.json").write_text("[]")
    with pytest.raises(DocumentError, match="holds no records"):
        files.array(tmp_path / "array.json")


def test_files_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    write(tmp_path / "qasper.jsonl", [longbench_row("a")])
    plain = (tmp_path / "qasper.jsonl").read_bytes()
    (tmp_path / "qasper.jsonl").write_bytes(b"\xef\xbb\xbf" + plain)
    assert [record.id for record in records("longbench", tmp_path, "qasper")] == ["a"]
    (tmp_path / "array.json").write_bytes(b"\xef\xbb\xbf" + b"[" + plain.strip() + b"]")
    assert [row.text("_id") for row in files.array(tmp_path / "array.json")] == ["a"]


def test_positions_are_stretched_as_in_the_paper_or_to_the_files_length(tmp_path: Path) -> None:
    row = {"index": 7, "input": NIAH, "outputs": ["12"], "length": 130_000}
    write(tmp_path / "vt/validation.jsonl", [row | {"input": "Memorize and track the chain(s) "
        "Question: Find all variables that are assigned"}])  # fmt: skip
    survey = order.TaskSelection(bench.find("ruler"), tmp_path, ["vt"]).survey()
    assert survey.length == 131_072
    write(tmp_path / "qasper.jsonl", [longbench_row("a")])
    survey = order.TaskSelection(bench.find("longbench"), tmp_path, ["qasper"]).survey()
    assert survey == ({("qasper", "a"): 1}, 32_000)


def test_methods_become_presets() -> None:
    base = load("tiny-random")
    made = order.presets(base, ["preset", "streaming-llm"], 1000)
    assert made["preset"] is base
    assert made["streaming-llm"].window.selected == 0
    with pytest.raises(UsageError, match="unknown method"):
        order.presets(base, ["streming-llm"], 1000)
    with pytest.raises(UsageError, match="no method"):
        order.presets(base, [], 1000)


@pytest.mark.parametrize("name", ["full", "origin", "ntk-dynamic"])
def test_full_attention_reads_with_everything_in_view(name: str) -> None:
    base = load("tiny-random", ["reading=local"])
    made = order.presets(base, [name], 1000)[name]
    assert (made.reading, made.selector) == ("select", {"name": "full"})
    assert load("smollm2-135m").reading == "local"
    assert order.presets(load("smollm2-135m"), ["full"], 1000)["full"].reading == "select"


@pytest.mark.parametrize(
    ("length", "heading"),
    [(200_000, "ntk(200k)"), (128_000, "ntk(128k)"), (131_072, "ntk(128k)"), (999, "ntk(999)")],
)
def test_what_is_stretched_says_so_in_its_heading(length: int, heading: str) -> None:
    base = load("tiny-random")
    methods = ["preset", "origin", "ntk", "infllm", "of a plugin"]
    titles = order.titles(base, methods, length)
    assert titles == {"ntk": heading}
    assert order.titles(base, methods, 0) == {}
    found = table.scores([*rows_of("ntk", trec=[1.0]), *rows_of("preset", trec=[0.5])])
    headers, _ = table.table(bench.find("longbench"), found, titles)
    assert headers == ["task", "records", heading, "preset"]


# -- the loop


def some(count: int) -> list[BenchRecord]:
    return [
        BenchRecord("longbench", "qasper", str(at), "b", f"d{at // 2}", "q", ("yes",), 8)
        for at in range(count)
    ]


def journal(path: Path, **settings: Any) -> Journal:
    header = {"command": "esa", "settings": settings}
    return Journal(path, header, same=("settings",), key=KEY)


def yes(record: BenchRecord) -> BenchReply:
    return BenchReply("yes", 7)


def right(record: BenchRecord, output: str) -> float:
    return float(output in record.answers)


def test_every_row_is_kept_and_none_asked_twice(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    asked: list[str] = []

    def ask(record: BenchRecord) -> BenchReply:
        if len(asked) == 2:
            raise KeyboardInterrupt
        asked.append(record.id)
        return yes(record)

    with pytest.raises(KeyboardInterrupt), journal(path) as first:
        run(some(4), ask, right, first, method="m", settings="s")
    with path.open("a") as file:
        file.write('{"method": "m", "task": "qasp')
    heard: list[dict[str, Any]] = []
    with journal(path) as second:
        assert run(some(4), yes, right, second, method="m", settings="s", on_row=heard.append)
    assert asked == ["0", "1"]
    assert [row["id"] for row in heard] == ["2", "3"]
    rows = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    assert [row["id"] for row in rows] == ["0", "1", "2", "3"]
    assert {**rows[0], "seconds": 0} == {
        "method": "m", "benchmark": "longbench", "task": "qasper", "id": "0", "answers": ["yes"],
        "output": "yes", "score": 1.0, "tokens": 7, "seconds": 0, "record": some(1)[0].digest,
        "settings": "s",
    }  # fmt: skip


def test_another_method_asks_again_and_other_settings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with journal(path, w=1) as rows:
        run(some(2), yes, right, rows, method="m")
        run(some(2), yes, right, rows, method="n")
        with pytest.raises(UsageError, match="other settings of n"):
            run(some(2), yes, right, rows, method="n", settings="edited")
    assert len(rows.rows) == 4
    with pytest.raises(UsageError, match="another settings"):
        journal(path, w=2)


@pytest.mark.parametrize(
    "change",
    [
        {"before": "B"},
        {"document": "D"},
        {"question": "Q"},
        {"prime": "p"},
        {"chat": False},
        {"answers": ("no",)},
        {"longest": 9},
        {"data": {"classes": ["a"]}},
    ],
)
def test_rows_of_other_data_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with journal(path) as first:
        run(some(2), yes, right, first, method="m")
    again = some(3)
    asked: list[str] = []

    def ask(record: BenchRecord) -> BenchReply:
        asked.append(record.id)
        return yes(record)

    with journal(path) as second:
        run(again, ask, right, second, method="m")
    assert asked == ["2"]
    again[1] = replace(again[1], **change)
    with journal(path) as third, pytest.raises(UsageError) as caught:
        run(again, ask, right, third, method="m")
    assert f"{path} holds another record as qasper, 1:" in caught.value.message
    assert "--data" in caught.value.hint
    assert asked == ["2"]
    rows = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    assert [row["record"] for row in rows] == [record.digest for record in some(3)]


def test_where_a_prompt_is_cut_counts() -> None:
    record = some(1)[0]
    moved = replace(record, before=record.before + record.document, document="")
    assert moved.digest != record.digest, "it is read otherwise"
    assert replace(record, id="another").digest == record.digest


def test_no_record_is_begun_after_the_time(tmp_path: Path) -> None:
    with journal(tmp_path / "rows.jsonl") as rows:
        assert not run(some(2), yes, right, rows, method="m", until=time.monotonic())
        assert rows.rows == []
        assert run(some(2), yes, right, rows, method="m", until=time.monotonic() + 60)


class Recorder:
    """A session that remembers what it was told."""

    document_tokens = 10

    def __init__(self) -> None:
        self.read_texts: list[str] = []
        self.prompts: list[str] = []

    def forget(self) -> None:
        self.text = ""

    def use(self, preset: Any) -> None:
        self.prompt = preset.prompt

    def check(self, question: str, **options: Any) -> None:
        if "too long" in question:
            raise LengthError("no room", "a shorter one")

    def read(self, text: str, progress: Any) -> None:
        self.text = text
        self.read_texts.append(text)

    def ask(self, question: str, on_text: Any, **options: Any) -> Any:
        assert self.prompt.after == "{question}"
        self.options = options
        self.prompts.append(self.prompt.before + self.text + question)
        on_text("    a = 1")
        return SimpleNamespace(text="a = 1", question_tokens=3)


def test_a_record_is_put_as_it_is_and_a_document_read_once() -> None:
    recorder = Recorder()
    seen: list[BenchRecord] = []
    asker = RecordAsker(recorder, load("tiny-random"), seen.append)  # type: ignore[arg-type]
    replies = [asker(record) for record in some(4)]
    assert recorder.read_texts == ["d0", "d1"]
    assert [record.id for record in seen] == ["0", "2"]
    assert recorder.prompts == [whole(record) for record in some(4)]
    assert replies[0] == BenchReply("    a = 1", 13), "the margin is kept, for code"
    assert recorder.options == {"prime": "", "max_new_tokens": 8, "temperature": 0.0}
    plain = BenchRecord("longbench", "lcc", "9", "b", "d1", "q", ("x",), 8, chat=False)
    asker(plain)
    assert recorder.read_texts == ["d0", "d1", "d1"], "another prompt is another reading"
    assert not recorder.prompt.chat


def test_a_question_without_room_is_left_out_before_its_document_is_read(tmp_path: Path) -> None:
    recorder = Recorder()
    asker = RecordAsker(recorder, load("tiny-random"), lambda record: None)  # type: ignore[arg-type]
    long = BenchRecord("longbench", "qasper", "x", "b", "d9", "too long", ("yes",), 8)
    left: list[str] = []
    with journal(tmp_path / "rows.jsonl") as rows:
        with pytest.raises(LengthError, match="no room"):
            run([long, *some(1)], asker, right, rows, method="m")
        assert run(
            [*some(1), long, *some(3)[2:]],
            asker,
            right,
            rows,
            method="m",
            on_left_out=lambda record, error: left.append(f"{record.id}: {error.message}"),
        )
        assert [row["id"] for row in rows.rows] == ["0", "2"]
    assert left == ["x: no room"]
    assert recorder.read_texts == ["d0", "d1"]


def test_a_reading_that_was_interrupted_is_done_again() -> None:
    recorder = Recorder()
    asker = RecordAsker(recorder, load("tiny-random"), lambda record: None)  # type: ignore[arg-type]
    read = recorder.read

    def interrupted(text: str, progress: Any) -> None:
        raise KeyboardInterrupt

    recorder.read = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        asker(some(1)[0])
    recorder.read = read  # type: ignore[method-assign]
    asker(some(1)[0])
    assert recorder.read_texts == ["d0"]


# -- tables


def rows_of(method: str, **scores: list[float]) -> Iterator[dict[str, Any]]:
    for task, values in scores.items():
        for value in values:
            yield {"method": method, "task": task, "score": value}


def test_table_has_means_averages_and_counts() -> None:
    rows = [*rows_of("ours", qasper=[0.5, 1.0], trec=[0.0]), *rows_of("theirs", trec=[1.0, 0.5])]
    found = table.scores(rows)
    headers, lines = table.table(bench.find("longbench"), found)
    assert headers == ["task", "records", "ours", "theirs"]
    assert lines == [
        ["Qasper", "2 / 0 of 200", "75.00", "-"],
        ["TREC", "1 / 2 of 200", "0.00", "75.00"],
        # (75 + 0) / 2: each task counts once, however many records
        ["LongBench average", "2 / 1 of 16 tasks", "37.50", "75.00"],
    ]
    assert table.markdown(headers, lines).splitlines()[:3] == [
        "| task | records | ours | theirs |",
        "| - | -: | -: | -: |",
        "| Qasper | 2 / 0 of 200 | 75.00 | - |",
    ]
    data = table.as_dict(bench.find("longbench"), found)["ours"]
    assert data["tasks"]["qasper"] == {"score": 75.0, "records": 2, "of": 200}
    assert data["averages"] == {"LongBench": {"score": 37.5, "tasks": 2, "of": 16}}


def test_groups_are_averaged_apart() -> None:
    searching, reasoning = "searching-128k-32-32", "reasoning-128k-32-32"
    found = table.scores(rows_of("m", **{searching: [1.0], reasoning: [0.5]}))
    _, lines = table.table(bench.find("counting-stars"), found)
    assert [line[0] for line in lines] == [
        "(128k, 32, 32)", "Counting-Stars, searching average",
        "(128k, 32, 32)", "Counting-Stars, reasoning average",
    ]  # fmt: skip
    assert [line[2] for line in lines] == ["100.00", "100.00", "50.00", "50.00"]


def test_a_benchmark_of_unknown_size_says_how_many() -> None:
    _, lines = table.table(bench.find("ruler"), table.scores(rows_of("m", vt=[1.0])))
    assert lines[0] == ["VT", "1", "100.00"]


# -- downloads


def test_archives_are_unpacked_flat(tmp_path: Path) -> None:
    archive = tmp_path / "data.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("data/qasper.jsonl", "{}\n")
        packed.writestr("../outside.jsonl", "{}\n")
        packed.writestr("data/readme.txt", "no")
    download.unpack(archive, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "data.zip", "outside.jsonl", "qasper.jsonl",
    ]  # fmt: skip


def test_downloads_end_at_once_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DocumentError, match="cannot fetch THUDM/LongBench"):
        download.download(download.dataset("longbench", ""), tmp_path, bars=False)
    with pytest.raises(UsageError, match="cannot be downloaded"):
        download.dataset("ruler", "its generator")


# -- the command


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("esa-home")


class Esa:
    """Runs the command in this process."""

    def __init__(self, capture: pytest.CaptureFixture[str], data: Path) -> None:
        self.capture, self.data = capture, data

    def __call__(self, *words: str, code: int = 0) -> str:
        given = main(["bench", *words])
        self.out, self.err = self.capture.readouterr()
        assert "Traceback" not in self.err
        assert given == code, self.err
        return self.out


@pytest.fixture
def esa(
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    short_answers: None,
) -> Esa:
    for name in ("ESA_MEMORY_LIMIT", "ESA_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ESA_HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    data = tmp_path / "data"
    write(data / "qasper.jsonl", [longbench_row("a"), longbench_row("b", input="Which gate?")])
    write(data / "lcc.jsonl", [longbench_row("c", input="")])
    monkeypatch.chdir(tmp_path)
    return Esa(capsys, data)


def test_the_command_prints_a_table(esa: Esa, monkeypatch: pytest.MonkeyPatch) -> None:
    read = session.Session.read
    texts: list[str] = []

    def counted(self: session.Session, text: str, progress: Any = None) -> None:
        texts.append(text)
        read(self, text, progress)

    monkeypatch.setattr(session.Session, "read", counted)
    out = esa(
        "longbench", "--data", str(esa.data), *TINY, "--methods", "preset,streaming-llm",
        "--out", "rows.jsonl", "--markdown", "table.md",
    )  # fmt: skip
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["task", "records", "preset", "streaming-llm"]
    assert lines[1][:4] == ["Qasper", "2", "of", "200"]
    assert lines[3][:6] == ["LongBench", "average", "2", "of", "16", "tasks"]
    assert "left out, their files are not in" in esa.err
    assert Path("table.md").read_text().startswith("| task | records | preset | streaming-llm |")
    assert len(texts) == 4, "both questions of qasper share a reading, for each method"
    rows = [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]
    assert [(row["method"], row["task"], row["id"]) for row in rows[1:]] == [
        (method, *rest)
        for method in ("preset", "streaming-llm")
        for rest in (("qasper", "a"), ("qasper", "b"), ("lcc", "c"))
    ]
    assert all(row["tokens"] > 100 for row in rows[1:])


def trec_row(name: str, question: str, context: str) -> dict[str, Any]:
    return longbench_row(name, input=question, context=context, all_classes=["Date", "Place"])


def test_a_record_without_room_is_named_and_the_others_are_asked(esa: Esa) -> None:
    questions = {"a": "When?", "b": "When? " * 300, "c": "Where?"}
    rows = [trec_row(name, asked, "Who? Person. " * 60) for name, asked in questions.items()]
    write(esa.data / "trec.jsonl", rows)
    words = ("--tasks", "trec", "--set", "window.ending=0", "--set", "window.selected=16")
    out = esa("longbench", "--data", str(esa.data), *TINY, *words)
    assert "preset: trec, b left out: the question and the answer take" in esa.err
    assert out.splitlines()[1].split()[:4] == ["TREC", "2", "of", "200"]
    assert "note: preset: trec: 1 left out, for want of room" in out
    told = json.loads(esa("longbench", "--data", str(esa.data), *TINY, *words, "--json"))
    assert told["complete"]
    (missed,) = told["left_out"]
    assert (missed["method"], missed["task"], missed["id"]) == ("preset", "trec", "b")
    assert missed["why"].startswith("the question and the answer take")


@pytest.mark.parametrize(("dense", "said"), [("512", True), ("0", False)])
def test_prompts_too_short_to_select_from_are_counted(esa: Esa, dense: str, said: bool) -> None:
    rows = [trec_row("short", "When?", "Who?"), trec_row("long", "When?", "Who? Person. " * 60)]
    write(esa.data / "trec.jsonl", rows)
    words = ("--tasks", "trec", "--set", f"window.dense={dense}")
    esa("longbench", "--data", str(esa.data), *TINY, *words)
    note = "1 of 2 prompts have at most 512 tokens (window.dense): plain attention"
    assert (note in esa.err) is said


def test_the_command_goes_on_where_it_was(esa: Esa, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("longbench", "--data", str(esa.data), *TINY, "--out", "rows.jsonl")
    ask = session.Session.ask
    left = [1]

    def once(self: session.Session, *given: Any, **options: Any) -> Any:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return ask(self, *given, **options)

    monkeypatch.setattr(session.Session, "ask", once)
    out = esa(*words, code=130)
    assert "1 of 200" in out, "what was done is shown"
    assert "the same command with --out rows.jsonl goes on" in esa.err
    monkeypatch.setattr(session.Session, "ask", ask)
    data = json.loads(esa(*words, "--json", "--quiet"))
    assert esa.err == ""
    assert data["complete"]
    assert data["scores"]["preset"]["tasks"]["qasper"]["records"] == 2
    assert [row["id"] for row in data["rows"]] == ["a", "b", "c"]
    esa(*words, "--set", "window.selected=32", code=2)
    assert "holds results of another settings" in esa.err


def test_the_command_refuses_rows_of_other_data(esa: Esa, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (*TINY, "--tasks", "qasper", "--out", "rows.jsonl")
    esa("longbench", "--data", str(esa.data), *words)
    kept = Path("rows.jsonl").read_bytes()
    monkeypatch.setattr("esa_cli.models.load", lambda *args, **options: pytest.fail("loaded"))
    other = esa.data.parent / "other"
    write(other / "qasper.jsonl", [longbench_row("a"), longbench_row("b", context="A fox. " * 30)])
    esa("longbench", "--data", str(other), *words, code=2)
    assert "another record as qasper, b:" in esa.err
    assert Path("rows.jsonl").read_bytes() == kept


def test_no_token_of_a_prompt_is_left_out(esa: Esa) -> None:
    row = longbench_row("a", context="The keeper opens the gate. " * 100)
    write(esa.data / "qasper.jsonl", [row])
    words = ("longbench", "--data", str(esa.data), *TINY, "--tasks", "qasper", "--json")
    data = json.loads(esa(*words, "--methods", "preset,streaming-llm,full"))
    (record,) = records("longbench", esa.data, "qasper")
    tokenizer = models.load("random:llama", device="cpu", dtype="float32").tokenizer
    said = [{"role": "user", "content": whole(record)}]
    text = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
    tokens = len(tokenizer(text, add_special_tokens=False)["input_ids"])
    assert tokens > 5 * load("tiny-random").context
    assert [row["tokens"] for row in data["rows"]] == [tokens] * 3


def test_the_command_stops_at_its_time(esa: Esa) -> None:
    out = esa("longbench", "--data", str(esa.data), *TINY, "--time-limit", "0", "--json")
    assert json.loads(out)["complete"] is False
    assert "the time limit was reached" in esa.err


def test_the_command_limits_records_of_each_task(esa: Esa) -> None:
    out = esa("longbench", "--data", str(esa.data), *TINY, "--limit", "1", "--tasks", "qasper,lcc")
    assert "1 of 200" in out
    assert "left out" not in esa.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["longbench"], 2, "data.zip of the dataset THUDM/LongBench"),
        (["longbensh"], 2, "did you mean 'longbench'?"),
        (["longbench", "--data", "nowhere"], 3, "there is no folder nowhere"),
        (["longbench", "--data", "data", "--tasks", "qaspr"], 2, "did you mean 'qasper'?"),
        (["longbench", "--data", "data", "--methods", "streming-llm"], 2, "unknown method"),
        (["longbench", "--data", "data", "--markdown", "no/t.md"], 2, "there is no folder"),
        (["ruler", "--data", "data", "--download"], 2, "cannot be downloaded"),
    ],
)
def test_mistakes_are_found_before_the_model_is_loaded(
    words: list[str], code: int, said: str, esa: Esa, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esa_cli.models.load", lambda *args, **options: pytest.fail("loaded"))
    esa(*words, *TINY, code=code)
    assert said in esa.err


def test_no_file_of_the_data_is_written_over(esa: Esa, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("longbench", "--data", str(esa.data), *TINY, "--limit", "1")
    before = (esa.data / "lcc.jsonl").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("esa_cli.models.load", lambda *given, **options: pytest.fail("loaded"))
        esa(*words, "--markdown", str(esa.data / "lcc.jsonl"), code=2)
        assert "is one of the files in --data" in esa.err
        esa(*words, "--out", str(esa.data / "lcc.jsonl"), code=2)
        assert "not a results file" in esa.err
        esa(*words, "--out", "same.x", "--markdown", "same.x", code=2)
        assert "--out and --markdown are both same.x" in esa.err
    assert (esa.data / "lcc.jsonl").read_bytes() == before
    for _ in range(2):
        esa(*words, "--markdown", str(esa.data / "table.md"), "--out", str(esa.data / "o.jsonl"))
    assert (esa.data / "table.md").read_text().startswith("| task |"), (
        "a table takes a table's place"
    )


def test_a_table_of_many_methods_fits_a_narrow_terminal(
    esa: Esa, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = [f"method-number-{n}" for n in range(8)]
    found = table.scores(
        [row for name in methods for row in rows_of(name, qasper=[0.5, 1.0], lcc=[0.25])]
    )
    pieces = bench_table._pieces(bench.find("longbench"), found, {}, 80)
    assert [name for headers, _ in pieces for name in headers[2:]] == methods
    assert 2 <= len(pieces) < 8
    monkeypatch.setattr("esa_cli.apps.cli.terminal.room", lambda: 80)
    for piece in pieces:
        print_table(*piece)
        lines = esa.capture.readouterr().out.splitlines()
        assert len(lines) == 4, "a line for each row, and one for the headers"
        assert max(map(len, lines)) <= 80
        assert lines[1].split()[:4] == ["Qasper", "2", "of", "200"]
    monkeypatch.setattr(bench_table, "room", lambda: 46)
    words = ("--data", str(esa.data), *TINY, "--limit", "1", "--methods", "preset,streaming-llm")
    headers = [line.split() for line in esa("longbench", *words).splitlines() if "task " in line]
    assert headers == [["task", "records", "preset"], ["task", "records", "streaming-llm"]]
    assert len(bench_table._pieces(bench.find("longbench"), found, {}, 1000)) == 1
    assert len(bench_table._pieces(bench.find("longbench"), found, {}, 10)) == 8


def test_a_broken_line_is_found_before_the_model_is_loaded(
    esa: Esa, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esa_cli.models.load", lambda *args, **options: pytest.fail("loaded"))
    write(esa.data / "trec.jsonl", [longbench_row("a", all_classes=["x"]), ["broken"]])
    esa("longbench", "--data", str(esa.data), *TINY, code=3)
    assert "trec.jsonl, line 2" in esa.err


def test_words_are_put_into_the_mouth_and_notes_printed(esa: Esa) -> None:
    name = "Counting_Stars_EN_multi-evidence-retrieval-searching_128000_32_32.jsonl"
    write(esa.data / name, [stars_row(False)])
    assert "(128k, 32, 32)" in esa("counting-stars", "--data", str(esa.data), *TINY)
    book = {"context": "def f(): ...", "input": "", "answer": "f", "options": ["f", "g", "h", "i"]}
    write(esa.data / "code_debug.jsonl", [book])
    assert "note: Code.Debug" in esa("infinitebench", "--data", str(esa.data), *TINY)
