"""The four public benchmarks of the paper: records, prompts, answer lengths and scores.

LongBench: prompts and answer lengths are those of its `config/dataset2prompt.json` and
`config/dataset2maxlen.json`; they are part of its definition. Its five Chinese tasks need a word
splitter and are left out. The official code cuts long prompts in the middle; nothing is cut here.
It stops samsum at the first line break; here the score takes the first line, as it does there.

InfiniteBench, the six tasks of the paper's table: prompts and answer lengths are InfLLM's
(`benchmark/config/`), which differ from the benchmark's own in Retrieve.KV and Code.Debug: the
paper compares itself with InfLLM and gives no others. Scores are its own, but for Code.Debug.

Counting-Stars, the English files, searching and reasoning: the question is the file's own. As in
the paper's sample the list is opened for the model. Upstream has the files of 128k tokens; the
paper's 256k ones are read if someone has made them. The mistaken counts of the reasoning task are
read off the text, where the official scorer has them in a file.

NeedleBench, version 1, English, three needles at once (M-RT), the part that the paper gives: texts
are built from essays as in OpenCompass. The paper gives neither the number of prompts nor the
depths. Its scores are multiples of 1/30, and its sample has text on both sides of each needle, so
here it is ten prompts with needles at 25, 50 and 75 per cent."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, Field

from esa_cli.errors import DocumentError, UsageError
from esa_cli.evaluation import metrics
from esa_cli.evaluation.bench.records import (
    Benchmark,
    BenchRecord,
    BenchTask,
    Texts,
    read_rows,
    split_prompt,
)
from esa_cli.evaluation.tasks.key_tasks import NUMBER, PASSKEY
from esa_cli.evaluation.tasks.needle_tasks import BEFORE
from esa_cli.system.registry import nearest

FORMS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("longbench_tasks.json").read_text("utf-8")
)
"""Title, records, length of answers, prompt and score of each task; whether it is put as a chat."""
FIRST_LINE = ("trec", "triviaqa", "samsum")


class LongBenchRow(BaseModel):
    """A line of an official file."""

    context: str
    input: str
    answers: Texts
    all_classes: Texts | None = None
    name: str | int | None = Field(None, alias="_id")


def read_longbench(folder: Path, task: str) -> Iterator[BenchRecord]:
    form = FORMS[task]
    if form["score"] == "rouge_l":
        metrics.library("rouge")

    def make(row: LongBenchRow, line: int) -> BenchRecord:
        classes = row.all_classes
        if task == "trec" and classes is None:
            raise ValueError("'all_classes' is missing")
        return BenchRecord(
            "longbench",
            task,
            str(row.name or line),
            *split_prompt(form["prompt"], row.context, input=row.input),
            answers=row.answers,
            longest=form["longest"],
            chat=form["chat"],
            data={"classes": classes} if task == "trec" else {},
        )

    return read_rows(folder, [f"{task}.jsonl"], LongBenchRow, make)


def longbench_score(record: BenchRecord, output: str) -> float:
    """The best over the answers."""
    if record.task in FIRST_LINE:
        output = metrics.first_line(output)
    if record.task == "trec":
        classes = record.data["classes"]
        return max(metrics.class_share(output, gold, classes) for gold in record.answers)
    rule: Callable[[str, str], float] = getattr(metrics, FORMS[record.task]["score"])
    return max(rule(output, gold) for gold in record.answers)


_OPTIONS = "A. {A}\nB. {B}\nC. {C}\nD. {D}"
PROMPTS = {
    "passkey": PASSKEY.before + "{context}\n\n{input}",
    "number_string": NUMBER.before + "{context}\n\n{input}",
    "kv_retrieval": (
        "Extract the value corresponding to the specified key {key} in the JSON object below.\n\n"
        "{context}\n\n{input}"
    ),
    "math_find": "{prefix}\n\n{context}\n\n{input}",
    "longbook_choice_eng": (
        "Read the book and answer the question.\n\n{context}\n\nQuestion: {input}\n\nOnly one of "
        "the following options is correct, tell me the answer using one single letter (A, B, C, or "
        "D). Don't say anything else.\n" + _OPTIONS
    ),
    "code_debug": (
        "There is ONLY ONE function in the large project that is deliberately made to include an "
        "obvious error. Please find the function that contains the most obvious errors. I will "
        "give you four options to narrow your scope. You can inspect the options and think. "
        "Eventually, tell me the answer using one single letter (A, B, C, or D).\n\n{context}\n\n"
        "Which funtion has deliberate error?\n" + _OPTIONS + "\n\nGive me your answer for the "
        "function that has the deliberate and obvious error in A, B, C, or D. Your answer MUST be "
        "chosen from one of the four options without any explanation. If you cannot determine "
        "answers accurately, you also MUST provide the answer you think is most likely. Absolutely "
        "do not say you do not know or you need more information."
    ),
}
CHOICES = ("longbook_choice_eng", "code_debug")


class InfiniteBenchRow(BaseModel):
    """A line of an official file."""

    context: str = Field(validation_alias=AliasChoices("content", "context"))
    input: str
    answer: Texts
    options: Texts | None = None


def read_infinitebench(folder: Path, task: str) -> Iterator[BenchRecord]:
    def make(row: InfiniteBenchRow, line: int) -> BenchRecord:
        return BenchRecord(
            "infinitebench",
            task,
            str(line),
            *split_prompt(PROMPTS[task], row.context, **_fields(row, task)),
            answers=_choice(row) if task in CHOICES else row.answer,
            longest=100 if task == "kv_retrieval" else 32,
        )

    return read_rows(folder, [f"{task}.jsonl"], InfiniteBenchRow, make)


def _choice(row: InfiniteBenchRow) -> tuple[str, ...]:
    """The right option and its letter."""
    options, answers = row.options or (), row.answer
    if len(answers) == 2 and answers[1] in "ABCD":
        return answers
    if answers[0] not in options:
        raise ValueError("the answer is not among the options")
    return answers[0], "ABCD"[options.index(answers[0])]


def _fields(row: InfiniteBenchRow, task: str) -> dict[str, str]:
    """Values of the prompt's fields. Raises ValueError."""
    fields = {"input": row.input}
    if task in CHOICES:
        if len(row.options or ()) != 4:
            raise ValueError("'options' are not four")
        return fields | dict(zip("ABCD", row.options or (), strict=True))
    if task == "kv_retrieval":
        key = re.search('"[^"]*"', row.input)
        if key is None:
            raise ValueError("'input' names no key")
        return fields | {"key": key[0]}
    if task == "math_find":
        wanted = row.input.partition("The ")[2].rpartition(" of")[0]
        if not wanted or not metrics.is_number(row.answer[0]):
            raise ValueError("'input' names no number that is wanted, or 'answer' is no number")
        return fields | {"prefix": f"What is the {wanted.lower()} in the following list?"}
    return fields


_SCORES = {
    "kv_retrieval": metrics.contains_word,
    "math_find": metrics.first_number_match,
    "number_string": metrics.first_integer_match,
    "passkey": metrics.first_integer_match,
}


def infinitebench_score(record: BenchRecord, output: str) -> float:
    """0 or 1."""
    if record.task == "code_debug":
        return metrics.code_debug(output, record.answers)
    if record.task == "longbook_choice_eng":
        return metrics.multiple_choice(output, record.answers)
    return _SCORES[record.task](output, record.answers[0])


KINDS = ("searching", "reasoning")
VERSIONS = ((128, 32, 32), (256, 8, 32), (256, 16, 32), (256, 32, 32))
"""Thousands of tokens in the longest record, counts in each record, records."""
PRIME = '```json\n{"little_penguin": ['
STARS_LONGEST = 256
_MISTAKEN = re.compile(r"The little penguin counted (\d+) ★, but found that a mistake")


class StarsRow(BaseModel):
    """A line of an official file."""

    question: str
    retrieval_question: str
    reference_counting_results: Annotated[tuple[int, ...], Field(min_length=1)]


def stars_files(task: str) -> Sequence[str]:
    kind, k, m, n = task.split("-")
    end = f"{k.removesuffix('k')}000_{m}_{n}.jsonl"
    other = "acquisition" if kind == "searching" else kind  # as the project's page calls them
    return [
        f"Counting_Stars_EN_multi-evidence-retrieval-{kind}_{end}",
        f"Counting_Stars_EN_{other}_{end}",
    ]


def read_stars(folder: Path, task: str) -> Iterator[BenchRecord]:
    def make(row: StarsRow, line: int) -> BenchRecord:
        document = row.question.removesuffix(row.retrieval_question)
        if not row.retrieval_question or document == row.question:
            raise ValueError("'question' does not end with 'retrieval_question'")
        right = row.reference_counting_results
        mistaken = tuple(int(count) for count in _MISTAKEN.findall(document))
        if task.startswith("reasoning") and len(mistaken) != len(right):
            raise ValueError(f"{len(mistaken)} mistaken counts for {len(right)} right ones")
        return BenchRecord(
            "counting-stars",
            task,
            str(line),
            before="",
            document=document,
            question=row.retrieval_question,
            answers=tuple(str(count) for count in right),
            longest=STARS_LONGEST,
            prime=PRIME,
            data={"mistaken": mistaken},
        )

    return read_rows(folder, stars_files(task), StarsRow, make)


def stars_score(record: BenchRecord, output: str) -> float:
    """The mean over the counts."""
    right = [int(count) for count in record.answers]
    listed = metrics.listed_stars(record.prime + output, len(right))
    if record.task.startswith("reasoning"):
        return metrics.reasoning_score(listed, right, record.data["mistaken"])
    return metrics.searching_score(listed, right)


ESSAYS, NEEDLES = "PaulGrahamEssays.jsonl", "needles.jsonl"
REPEATS = 10
LENGTHS = (4, 8, 16, 48, 80, 112, 128, 144, 176, 200)
"""Thousands of gpt-4's tokens."""
BUFFERS = {4000: 1000, 8000: 1300}
"""Tokens that a text of this length lacks, for question and answer; others lack 3000."""
DEPTHS = (25, 50, 75)
NEEDLES_LONGEST = 256
GUIDE = "Before answering, please consider what in the document is most relevant to this question."
FORMAT = "Please answer in the format"


class EssayRow(BaseModel):
    """A line of the essays."""

    text: str


class NeedleRow(BaseModel):
    """A needle of the official file, in any language."""

    arg1: str
    arg2: str
    needle: str
    retrieval_question: str
    language: str


def gpt4() -> Any:
    """gpt-4's tokenizer, fetched once by tiktoken. Raises UsageError: tiktoken is not installed.
    DocumentError: its vocabulary cannot be fetched."""
    tiktoken = metrics.library("tiktoken")
    try:
        return tiktoken.encoding_for_model("gpt-4")
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DocumentError(
            f"gpt-4's vocabulary cannot be fetched: {reason}",
            "set TIKTOKEN_CACHE_DIR to a folder that was filled where there is a network",
        ) from error


def read_needles(folder: Path, task: str) -> Iterator[BenchRecord]:
    """The same needles in every text, in another order each time."""
    length = int(task.rpartition("-")[2].removesuffix("k")) * 1000
    unlike = _unlike(_needles(folder), len(DEPTHS))
    essays = list(read_rows(folder, [ESSAYS], EssayRow, lambda row, _: row.text))
    tokenizer = gpt4()
    tokens = {essay: tokenizer.encode(essay) for essay in essays}
    for seed in range(REPEATS):
        Random(seed).shuffle(essays)  # on top of the shuffles before
        order = list(unlike)
        Random(seed).shuffle(order)
        hidden = [tokenizer.encode(f"\n{needle.needle}\n") for needle in order]
        size = length - BUFFERS.get(length, 3000) - sum(map(len, hidden))
        hay = [token for essay in essays for token in tokens[essay]][: max(size, 0)]
        ids, last = list[int](), 0
        for needle, depth in zip(hidden, DEPTHS, strict=True):
            place = int(len(hay) * (depth / 100))
            ids += hay[last:place] + needle
            last = place
        document = tokenizer.decode(ids + hay[last:])
        answers = tuple(needle.arg2 for needle in order)
        question = _question([needle.retrieval_question for needle in order])
        yield BenchRecord(
            "needlebench", task, str(seed), BEFORE, document, question, answers, NEEDLES_LONGEST
        )


def _question(asked: Sequence[str]) -> str:
    questions = "、".join(text.split("?")[0] + "?" for text in asked)
    formats = "、".join(text.split("'")[1].split(".")[0] for text in asked)
    return f"\n\nNow, the questions are: {questions}{GUIDE} {FORMAT} of '{formats}'\n"


def _needles(folder: Path) -> list[NeedleRow]:
    """The English needles. Raises DocumentError."""

    def make(row: NeedleRow, _: int) -> NeedleRow:
        question = row.retrieval_question
        if row.language == "English" and (FORMAT not in question or question.count("'") < 2):
            raise ValueError(f"'retrieval_question' does not say {FORMAT!r}")
        if not (row.arg1.strip() and row.arg2.strip() and row.needle.strip()):
            raise ValueError("'arg1', 'arg2' and 'needle' must not be empty")
        return row

    rows = read_rows(folder, [NEEDLES], NeedleRow, make)
    needles = [row for row in rows if row.language == "English"]
    if not needles:
        raise DocumentError(f"{NEEDLES} has no English needles", f"official files: {NEEDLE_SOURCE}")
    return needles


def _unlike(needles: Sequence[NeedleRow], count: int) -> list[NeedleRow]:
    """Needles of which no two share a place or a thing."""
    rows = list(needles)
    Random(0).shuffle(rows)
    drawn: list[NeedleRow] = []
    for row in rows:
        if all(row.arg1 != other.arg1 and row.arg2 != other.arg2 for other in drawn):
            drawn.append(row)
        if len(drawn) == count:
            return drawn
    raise DocumentError(f"{NEEDLES} has no {count} needles unlike each other", "")


NEEDLE_SOURCE = "hf download opencompass/NeedleBench --repo-type dataset --local-dir DIR"
BENCHMARKS: dict[str, Benchmark] = {
    "longbench": Benchmark(
        tasks=tuple(
            BenchTask(name, form["title"], "LongBench", form["size"])
            for name, form in FORMS.items()
        ),
        source="hf download THUDM/LongBench data.zip --repo-type dataset --local-dir DIR, unpacked",
        read=read_longbench,
        score=longbench_score,
        length=32_000,
    ),
    "infinitebench": Benchmark(
        tasks=tuple(
            BenchTask(name, title, "InfiniteBench", size)
            for name, title, size in (
                ("kv_retrieval", "Retrieve.KV", 500),
                ("math_find", "Math.Find", 350),
                ("number_string", "Retrieve.Number", 590),
                ("longbook_choice_eng", "En.MC", 229),
                ("code_debug", "Code.Debug", 394),
                ("passkey", "Retrieve.PassKey", 590),
            )
        ),
        source="hf download xinrongzhang2022/InfiniteBench --repo-type dataset --local-dir DIR",
        read=read_infinitebench,
        score=infinitebench_score,
        length=200_000,
        notes={
            "code_debug": "Code.Debug: where no option is named, InfLLM's rule guesses one, so an "
            "empty answer is right once in four."
        },
    ),
    "counting-stars": Benchmark(
        tasks=tuple(
            BenchTask(f"{kind}-{k}k-{m}-{n}", f"({k}k, {m}, {n})", f"Counting-Stars, {kind}", n)
            for kind in KINDS
            for k, m, n in VERSIONS
        ),
        source="the English .jsonl files in test_data/ of github.com/nick7nlp/Counting-Stars",
        files=stars_files,
        read=read_stars,
        score=stars_score,
        length=200_000,
    ),
    "needlebench": Benchmark(
        tasks=tuple(BenchTask(f"m-rt-{k}k", f"{k}k", "NeedleBench M-RT", REPEATS) for k in LENGTHS),
        source=NEEDLE_SOURCE,
        files=lambda task: [NEEDLES],
        read=read_needles,
        score=lambda record, output: metrics.keyword_share(output, record.answers),
        length=200_000,
        notes={
            "": "Where all essays together are shorter than a task's length, so are its texts, as "
            "in OpenCompass."
        },
    ),
}


def find(name: str) -> Benchmark:
    """The benchmark called `name`. Raises UsageError: there is none; the hint names the nearest."""
    if name not in BENCHMARKS:
        raise UsageError(f"unknown benchmark {name!r}", nearest(name, [*BENCHMARKS]))
    return BENCHMARKS[name]
