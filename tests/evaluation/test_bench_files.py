"""Readers of the public benchmarks' files: prompts, records and invalid lines."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bench_rows import longbench_row, records, stars_row, whole, write

from esa_cli.errors import DocumentError, UsageError
from esa_cli.evaluation import bench
from esa_cli.evaluation.bench import bench_runner as order
from esa_cli.evaluation.bench import data_files as download
from esa_cli.evaluation.bench import data_files as files
from esa_cli.evaluation.bench import needlebench, ruler
from esa_cli.evaluation.bench import needlebench as haystack

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
    with pytest.raises(DocumentError, match="qasper, record '1' has no question"):
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
