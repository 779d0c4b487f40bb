"""Files, prompts, answer lengths and scores of the ESA paper's four public benchmarks.

LongBench has no Chinese tasks, and its long prompts are not cut. InfiniteBench has the six tasks of
the ESA paper's table, with InfLLM's prompts and answer lengths. The prompt of Counting-Stars opens
the list of counts, as in the paper's sample. NeedleBench is its version 1 in English with three
needles at once (M-RT), at 25, 50 and 75 per cent of a text of essays; each task has ten prompts.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from typing import Annotated, Any, NamedTuple, TypeVar, cast

from pydantic import AliasChoices, BaseModel, BeforeValidator, Field, ValidationError

from esa_cli.errors import DocumentError, UsageError, first_line
from esa_cli.evaluation import metrics
from esa_cli.evaluation.tasks.needle_tasks import AFTER, BEFORE, GUIDE, JOINT
from esa_cli.system.registry import suggest_name
from esa_cli.system.text import digest_text

REFETCH = "fetch the official file again"


class BenchTask(NamedTuple):
    """A task of a benchmark: its name on the command line, its title in the paper, the group of
    tasks for which an average is shown, and the number of records in the whole task."""

    name: str
    title: str
    group: str
    size: int


@dataclass(frozen=True)
class BenchRecord:
    """One prompt of a benchmark with its right answers. `chat` says whether the prompt is in the
    model's chat template, `longest` limits the answer's tokens, and `prime` is the start of the
    answer. `data` has further values for the benchmark's score."""

    benchmark: str
    task: str
    id: str
    before: str
    document: str
    question: str
    answers: tuple[str, ...]
    longest: int
    chat: bool = True
    prime: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """A hash of all fields except the id, which is only a line number in some benchmarks."""
        fields = {name: value for name, value in vars(self).items() if name != "id"}
        return digest_text(json.dumps(fields))[:16]


@dataclass(frozen=True)
class Benchmark:
    """A public benchmark, with its tasks in the order of the paper's table. `source` says how to
    get the official files. `read` reads a task's records from a folder, and `score` scores an
    output from 0 to 1. `length` is the number of tokens to which the paper stretches position
    encodings. `files` returns the possible names of a task's file. `notes` has remarks by task."""

    tasks: tuple[BenchTask, ...]
    source: str
    read: Callable[[Path, str], Iterator[BenchRecord]]
    score: Callable[[BenchRecord, str], float]
    length: int
    files: Callable[[str], Sequence[str]] = lambda task: [f"{task}.jsonl"]
    notes: Mapping[str, str] = field(default_factory=dict)

    def list_tasks_in_folder(self, folder: Path) -> list[str]:
        """Returns the names of the tasks whose files are in the folder."""
        return [task.name for task in self.tasks if find_task_file(folder, self.files(task.name))]

    def load_records(
        self, folder: Path, tasks: Sequence[str], limit: int | None
    ) -> Iterator[BenchRecord]:
        """Yields the first `limit` records of each task. Raises DocumentError: a file is missing or
        has an invalid line. UsageError: a library for the score is missing."""
        for task in tasks:
            if not find_task_file(folder, self.files(task)):
                missing = folder / self.files(task)[0]
                raise DocumentError(f"{missing} is missing", f"get the files: {self.source}")
            yield from islice(self.read(folder, task), limit)


def find_task_file(folder: Path, names: Sequence[str]) -> Path | None:
    """Finds the first file with one of these names in the folder or its subfolders."""
    paths = (path for name in names for path in folder.rglob(name) if path.is_file())
    return min(paths, key=lambda p: (names.index(p.name), len(p.parts), str(p)), default=None)


def _convert_to_texts(value: Any) -> list[Any]:
    values = value if isinstance(value, list) else [value]
    return [str(item) if isinstance(item, int | float) else item for item in values]


Texts = Annotated[tuple[str, ...], BeforeValidator(_convert_to_texts), Field(min_length=1)]
"""One or more texts or numbers, converted to texts."""
Row = TypeVar("Row", bound=BaseModel)
T = TypeVar("T")


def read_json_lines(
    folder: Path, file_names: Sequence[str], row_class: type[Row], convert: Callable[[Row, int], T]
) -> Iterator[T]:
    """Reads a file of JSON lines, and converts each object, given with its line number from 1.
    Raises DocumentError: the file has no objects, an object is not of this kind, or `convert`
    raises a ValueError."""
    path, empty = find_task_file(folder, file_names) or folder / file_names[0], True
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                text = line.removeprefix(codecs.BOM_UTF8).strip()
                if not text:
                    continue
                try:
                    data = json.loads(text.decode())
                    if b"\\ud" in text.lower():  # raises for a lone surrogate
                        json.dumps(data, ensure_ascii=False).encode()
                    record = convert(row_class.model_validate(data), number)
                except (ValueError, RecursionError) as error:  # RecursionError: nested too deep
                    reason = str(error)
                    if isinstance(error, ValidationError):
                        first = error.errors(include_input=False)[0]
                        reason = f"{'.'.join(map(str, first['loc']))!r}: {first['msg']}"
                    raise DocumentError(f"{path}, line {number}: {reason}", REFETCH) from error
                empty = False
                yield record
    except OSError as error:
        raise DocumentError(f"{path} cannot be read: {error.strerror}", REFETCH) from error
    if empty:
        raise DocumentError(f"{path} has no records", REFETCH)


def split_prompt_template(template: str, context: str, **fields: str) -> tuple[str, str, str]:
    """Splits a prompt template at {context} into the text before, the document and the question."""
    before, after = template.split("{context}")
    return before.format(**fields), context, after.format(**fields)


Forms = dict[str, dict[str, Any]]
# Title, number of records and prompt of each task; LongBench's length of answers, score, chat.
LONGBENCH, INFINITEBENCH = (
    cast(Forms, json.loads(Path(__file__).with_name(f"{name}_tasks.json").read_text("utf-8")))
    for name in ("longbench", "infinitebench")
)


class LongBenchRow(BaseModel):
    """A line of a LongBench file as JSON."""

    context: str
    input: str
    answers: Texts
    all_classes: Texts | None = None
    name: str | int | None = Field(None, alias="_id")


def load_longbench_records(folder: Path, task: str) -> Iterator[BenchRecord]:
    form = LONGBENCH[task]
    if form["score"] == "compute_rouge_l":
        metrics.import_benchmark_library("rouge")

    def make_record(row: LongBenchRow, line: int) -> BenchRecord:
        if task == "trec" and row.all_classes is None:
            raise ValueError("'all_classes' is missing")
        prompt = split_prompt_template(form["prompt"], row.context, input=row.input)
        data = {"classes": row.all_classes} if task == "trec" else {}
        return BenchRecord(
            "longbench", task, str(row.name or line), *prompt, row.answers,
            longest=form["longest"], chat=form["chat"], data=data,
        )  # fmt: skip

    return read_json_lines(folder, [f"{task}.jsonl"], LongBenchRow, make_record)


def score_longbench_output(record: BenchRecord, output: str) -> float:
    """Scores an output of LongBench by the answer that gives the highest score."""
    if record.task in ("trec", "triviaqa", "samsum"):
        output = metrics.cut_to_first_line(output)
    if record.task == "trec":
        classes = record.data["classes"]
        return max(metrics.compute_class_share(output, gold, classes) for gold in record.answers)
    rule: Callable[[str, str], float] = getattr(metrics, LONGBENCH[record.task]["score"])
    return max(rule(output, gold) for gold in record.answers)


CHOICES = ("longbook_choice_eng", "code_debug")


class InfiniteBenchRow(BaseModel):
    """A line of an InfiniteBench file as JSON."""

    context: str = Field(validation_alias=AliasChoices("content", "context"))
    input: str
    answer: Texts
    options: Annotated[tuple[str, ...], BeforeValidator(lambda v: _convert_to_texts(v or []))] = ()


def load_infinitebench_records(folder: Path, task: str) -> Iterator[BenchRecord]:
    def make_record(row: InfiniteBenchRow, line: int) -> BenchRecord:
        fields = _make_prompt_fields(row, task)
        prompt = split_prompt_template(INFINITEBENCH[task]["prompt"], row.context, **fields)
        answers = _find_option_and_letter(row) if task in CHOICES else row.answer
        longest = 100 if task == "kv_retrieval" else 32
        return BenchRecord("infinitebench", task, str(line), *prompt, answers, longest)

    return read_json_lines(folder, [f"{task}.jsonl"], InfiniteBenchRow, make_record)


def _find_option_and_letter(row: InfiniteBenchRow) -> tuple[str, ...]:
    answers = row.answer
    if len(answers) == 2 and answers[1] in "ABCD":
        return answers
    if answers[0] not in row.options:
        raise ValueError("'answer' is not one of 'options'")
    return answers[0], "ABCD"[row.options.index(answers[0])]


def _make_prompt_fields(row: InfiniteBenchRow, task: str) -> dict[str, str]:
    """Returns the values that fill a prompt template. Raises ValueError: the row lacks a value."""
    fields = {"input": row.input}
    if task in CHOICES:
        if len(row.options) != 4:
            raise ValueError("'options' must have four values")
        fields |= dict(zip("ABCD", row.options, strict=True))
    elif task == "kv_retrieval":
        key = re.search('"[^"]*"', row.input)
        if key is None:
            raise ValueError("'input' has no key in quotation marks")
        fields["key"] = key[0]
    elif task == "math_find":
        wanted = row.input.partition("The ")[2].rpartition(" of")[0]
        if not wanted or not re.fullmatch(r"-?\d+(\.\d+)?", row.answer[0]):
            raise ValueError("'input' does not name a number, or 'answer' is not a number")
        fields["prefix"] = f"What is the {wanted.lower()} in the following list?"
    return fields


def score_infinitebench_output(record: BenchRecord, output: str) -> float:
    """Scores an output of InfiniteBench as right (1) or wrong (0)."""
    match record.task:
        case "code_debug":
            return metrics.score_code_debug(output, record.answers)
        case "longbook_choice_eng":
            return metrics.score_multiple_choice(output, record.answers)
        case "kv_retrieval":
            return metrics.score_answer_word(output, record.answers[0])
        case "math_find":
            return metrics.score_first_number(output, record.answers[0])
    return metrics.score_first_integer(output, record.answers[0])


KINDS = ("searching", "reasoning")
VERSIONS = ((128, 32, 32), (256, 8, 32), (256, 16, 32), (256, 32, 32))
"""Thousands of tokens in the longest record, number of counts in a record, number of records."""
PRIME = '```json\n{"little_penguin": ['
_MISTAKEN = re.compile(r"The little penguin counted (\d+) ★, but found that a mistake")


class StarsRow(BaseModel):
    """A line of a Counting-Stars file as JSON."""

    question: str
    retrieval_question: str
    reference_counting_results: Annotated[tuple[int, ...], Field(min_length=1)]


def list_stars_file_names(task: str) -> Sequence[str]:
    """Returns the two names that a Counting-Stars file has upstream and on the project's page."""
    kind, k, m, n = task.split("-")
    end = f"{k.removesuffix('k')}000_{m}_{n}.jsonl"
    other = "acquisition" if kind == "searching" else kind
    return [
        f"Counting_Stars_EN_multi-evidence-retrieval-{kind}_{end}",
        f"Counting_Stars_EN_{other}_{end}",
    ]


def load_stars_records(folder: Path, task: str) -> Iterator[BenchRecord]:
    def make_record(row: StarsRow, line: int) -> BenchRecord:
        asked = row.retrieval_question
        document = row.question.removesuffix(asked)
        if not asked or document == row.question:
            raise ValueError("'question' does not end with 'retrieval_question'")
        right = row.reference_counting_results
        mistaken = tuple(int(count) for count in _MISTAKEN.findall(document))
        if task.startswith("reasoning") and len(mistaken) != len(right):
            raise ValueError(f"there must be {len(right)} mistaken counts, got {len(mistaken)}")
        return BenchRecord(
            "counting-stars", task, str(line), "", document, asked, tuple(map(str, right)),
            longest=256, prime=PRIME, data={"mistaken": mistaken},
        )  # fmt: skip

    return read_json_lines(folder, list_stars_file_names(task), StarsRow, make_record)


def score_stars_output(record: BenchRecord, output: str) -> float:
    """Scores the counts of stars that an output of Counting-Stars lists, by the task's rule."""
    mistaken = record.data["mistaken"] if record.task.startswith("reasoning") else None
    return metrics.score_listed_stars(record.prime + output, record.answers, mistaken)


ESSAYS, NEEDLES = "PaulGrahamEssays.jsonl", "needles.jsonl"
NEEDLE_SOURCE = "hf download opencompass/NeedleBench --repo-type dataset --local-dir DIR"
REPEATS = 10
LENGTHS = (4, 8, 16, 48, 80, 112, 128, 144, 176, 200)
"""Lengths of NeedleBench's texts in thousands of gpt-4's tokens."""
BUFFERS = {4000: 1000, 8000: 1300}
"""Tokens reserved for question and answer in a text of this length; by default 3000."""
DEPTHS = (25, 50, 75)
FORMAT_PHRASE = "Please answer in the format"


class EssayRow(BaseModel):
    """A line of NeedleBench's file of essays as JSON."""

    text: str


class NeedleRow(BaseModel):
    """A line of NeedleBench's file of needles as JSON, in any language."""

    arg1: str
    arg2: str
    needle: str
    retrieval_question: str
    language: str


def load_gpt4_tokenizer() -> Any:
    """Returns gpt-4's tokenizer, which tiktoken downloads once. Raises UsageError: tiktoken is not
    installed. DocumentError: the vocabulary cannot be downloaded."""
    tiktoken = metrics.import_benchmark_library("tiktoken")
    try:
        return tiktoken.encoding_for_model("gpt-4")
    except Exception as error:
        raise DocumentError(
            f"gpt-4's vocabulary cannot be downloaded: {first_line(error)}",
            "set TIKTOKEN_CACHE_DIR to a folder that tiktoken filled on a machine with a network",
        ) from error


def load_needlebench_records(folder: Path, task: str) -> Iterator[BenchRecord]:
    """Yields NeedleBench's records, which hide the same sentences in different orders."""
    length = int(task.rpartition("-")[2].removesuffix("k")) * 1000
    needles = _draw_english_needles(folder, len(DEPTHS))
    essays = list(read_json_lines(folder, [ESSAYS], EssayRow, lambda row, _: row.text))
    tokenizer = load_gpt4_tokenizer()
    tokens = {essay: tokenizer.encode(essay) for essay in essays}
    for seed in range(REPEATS):
        Random(seed).shuffle(essays)  # on top of the shuffles before
        order = list(needles)
        Random(seed).shuffle(order)
        hidden = [tokenizer.encode(f"\n{needle.needle}\n") for needle in order]
        size = length - BUFFERS.get(length, 3000) - sum(map(len, hidden))
        hay = [token for essay in essays for token in tokens[essay]][: max(size, 0)]
        ids, last = list[int](), 0
        for needle, depth in zip(hidden, DEPTHS, strict=True):
            place = int(len(hay) * (depth / 100))
            ids += hay[last:place] + needle
            last = place
        asked = [needle.retrieval_question for needle in order]
        questions = JOINT.join(text.split("?")[0] + "?" for text in asked)
        formats = JOINT.join(text.split("'")[1].split(".")[0] for text in asked)
        question = AFTER.format(question=questions + GUIDE.format(formats=formats))
        yield BenchRecord(
            "needlebench", task, str(seed), BEFORE, tokenizer.decode(ids + hay[last:]), question,
            tuple(needle.arg2 for needle in order), longest=256,
        )  # fmt: skip


def _draw_english_needles(folder: Path, count: int) -> list[NeedleRow]:
    """Draws English sentences to hide, no two of which share an argument. Raises DocumentError."""

    def check_needle(row: NeedleRow, _: int) -> NeedleRow:
        question = row.retrieval_question
        if row.language == "English" and (FORMAT_PHRASE not in question or question.count("'") < 2):
            raise ValueError(f"'retrieval_question' does not say {FORMAT_PHRASE!r}")
        if not (row.arg1.strip() and row.arg2.strip() and row.needle.strip()):
            raise ValueError("'arg1', 'arg2' and 'needle' must not be empty")
        return row

    rows = read_json_lines(folder, [NEEDLES], NeedleRow, check_needle)
    english = [row for row in rows if row.language == "English"]
    Random(0).shuffle(english)
    drawn: list[NeedleRow] = []
    for row in english:
        if all(row.arg1 != other.arg1 and row.arg2 != other.arg2 for other in drawn):
            drawn.append(row)
        if len(drawn) == count:
            return drawn
    raise DocumentError(
        f"{NEEDLES} must have at least {count} English needles with different arguments",
        f"get the official files: {NEEDLE_SOURCE}",
    )


def _make_tasks(forms: Forms, group: str) -> tuple[BenchTask, ...]:
    return tuple(BenchTask(key, form["title"], group, form["size"]) for key, form in forms.items())


BENCHMARKS: dict[str, Benchmark] = {
    "longbench": Benchmark(
        tasks=_make_tasks(LONGBENCH, "LongBench"),
        source="hf download THUDM/LongBench data.zip --repo-type dataset --local-dir DIR, unpacked",
        read=load_longbench_records, score=score_longbench_output, length=32_000,
    ),
    "infinitebench": Benchmark(
        tasks=_make_tasks(INFINITEBENCH, "InfiniteBench"),
        source="hf download xinrongzhang2022/InfiniteBench --repo-type dataset --local-dir DIR",
        read=load_infinitebench_records, score=score_infinitebench_output, length=200_000,
        notes={
            "code_debug": "Code.Debug: if an answer names no option, InfLLM's rule guesses one, so "
            "an empty answer is right once in four."
        },
    ),
    "counting-stars": Benchmark(
        tasks=tuple(
            BenchTask(f"{kind}-{k}k-{m}-{n}", f"({k}k, {m}, {n})", f"Counting-Stars, {kind}", n)
            for kind in KINDS
            for k, m, n in VERSIONS
        ),
        source="the English .jsonl files in test_data/ of github.com/nick7nlp/Counting-Stars",
        files=list_stars_file_names,
        read=load_stars_records, score=score_stars_output, length=200_000,
    ),
    "needlebench": Benchmark(
        tasks=tuple(BenchTask(f"m-rt-{k}k", f"{k}k", "NeedleBench M-RT", REPEATS) for k in LENGTHS),
        source=NEEDLE_SOURCE,
        files=lambda task: [NEEDLES],
        read=load_needlebench_records,
        score=lambda record, output: metrics.compute_keyword_share(output, record.answers),
        length=200_000,
        notes={
            "": "If all essays together are shorter than a task's length, the task's texts are "
            "shorter, too, as in OpenCompass."
        },
    ),
}  # fmt: skip


def find_benchmark(name: str) -> Benchmark:
    """Returns the benchmark called `name`. Raises UsageError: there is no such benchmark."""
    if name not in BENCHMARKS:
        raise UsageError(f"there is no benchmark {name!r}", suggest_name(name, [*BENCHMARKS]))
    return BENCHMARKS[name]
