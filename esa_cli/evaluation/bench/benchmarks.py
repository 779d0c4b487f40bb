"""Loads the records of the ESA paper's four public benchmarks, and scores answers.

Of LongBench only the tasks that are not Chinese can be asked, and long prompts are not cut. Of
InfiniteBench the six tasks of the ESA paper can be asked, with InfLLM's prompts and answer lengths.
The prompt of Counting-Stars ends with the start of the answer, which is a JSON list of counts.
NeedleBench's tasks are the English M-RT tasks of version 1, with three needles in each text."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Annotated, Any, NamedTuple, TypeVar, cast

from pydantic import AliasChoices, BaseModel, BeforeValidator, Field, ValidationError

from esa_cli.errors import DocumentError, get_first_line
from esa_cli.evaluation import metrics
from esa_cli.evaluation.tasks.needle_tasks import AFTER, BEFORE, GUIDE, JOINT
from esa_cli.system.text import digest_text

REFETCH = "fetch the official file again"


class BenchTask(NamedTuple):
    """A task of a benchmark, with a title for the table of scores and the number of records."""

    name: str
    title: str
    group: str  # the title of the group of tasks for which an average is shown
    size: int  # the number of records in the whole task


@dataclass(frozen=True)
class BenchRecord:
    """A prompt of a benchmark about a document, with the right answers."""

    benchmark: str
    task: str
    id: str
    before: str
    document: str
    question: str
    answers: tuple[str, ...]
    longest: int  # the largest number of tokens in an answer
    chat: bool = True  # whether the prompt is put into the model's chat template
    prime: str = ""  # the start of the answer, which the model continues
    data: Mapping[str, Any] = field(default_factory=dict)  # further values for computing the score

    def compute_hash(self) -> str:
        """Returns a hash of the record's content, without the id."""
        fields = {name: value for name, value in vars(self).items() if name != "id"}
        return digest_text(json.dumps(fields))[:16]


@dataclass(frozen=True)
class Benchmark:
    """A public benchmark with the tasks, and functions that load records and score answers."""

    tasks: tuple[BenchTask, ...]
    source: str  # a command or address for downloading the official files
    read: Callable[[Path, str], Iterator[BenchRecord]]
    score: Callable[[BenchRecord, str], float]
    length: int  # the number of tokens to which the ESA paper stretches position encodings
    files: Callable[[str], Sequence[str]] = lambda task: [f"{task}.jsonl"]  # possible file names
    notes: Mapping[str, str] = field(default_factory=dict)  # remarks on a task's scores, by task

    def find_file(self, folder: Path, task: str) -> Path | None:
        return find_first_file(folder, self.files(task))


def find_first_file(folder: Path, file_names: Sequence[str]) -> Path | None:
    paths = (path for name in file_names for path in folder.rglob(name) if path.is_file())
    return min(paths, key=lambda p: (file_names.index(p.name), len(p.parts), str(p)), default=None)


def _list_json_texts(json_value: Any) -> list[Any]:
    values = json_value if isinstance(json_value, list) else [json_value]
    return [str(item) if isinstance(item, int | float) else item for item in values]


Texts = Annotated[tuple[str, ...], BeforeValidator(_list_json_texts), Field(min_length=1)]
"""One or more texts or numbers, converted to texts."""
Row = TypeVar("Row", bound=BaseModel)
T = TypeVar("T")


def read_json_rows(
    folder: Path, file_names: Sequence[str], row_class: type[Row], convert_row: Callable[[Row, int],
    T],
) -> Iterator[T]:  # fmt: skip
    """Yields `convert_row(row, line_number)` for each line of a JSON Lines file. Raises
    DocumentError: there is no row, or a row is not of the class or refused by a ValueError."""
    path, empty = find_first_file(folder, file_names) or folder / file_names[0], True
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                text = line.removeprefix(codecs.BOM_UTF8).strip()
                if not text:
                    continue
                try:
                    record = convert_row(row_class.model_validate_json(text), number)
                except ValueError as error:
                    reason = str(error)
                    if isinstance(error, ValidationError):
                        first = error.errors(include_input=False)[0]
                        reason = f"{'.'.join(map(str, first['loc'])) or 'row'!r}: {first['msg']}"
                    raise DocumentError(f"{path}, line {number}: {reason}", REFETCH) from error
                empty = False
                yield record
    except OSError as error:
        raise DocumentError(f"{path} cannot be read: {error.strerror}", REFETCH) from error
    if empty:
        raise DocumentError(f"{path} has no records", REFETCH)


def fill_prompt_template(template: str, document: str, **values: str) -> tuple[str, str, str]:
    """Returns the text before the document, the document, and the text after it."""
    before, after = template.split("{context}")
    return before.format(**values), document, after.format(**values)


TaskTable = dict[str, dict[str, Any]]
# Title, number of records, score and prompt of each task; LongBench's length of answers, no chat.
LONGBENCH, INFINITEBENCH = (
    cast(TaskTable, json.loads(Path(__file__).with_name(f"{name}_tasks.json").read_text("utf-8")))
    for name in ("longbench", "infinitebench")
)


class LongBenchRow(BaseModel):
    context: str
    input: str
    answers: Texts
    all_classes: Texts | None = None
    name: str | int | None = Field(None, alias="_id")


def load_longbench_records(folder: Path, task: str) -> Iterator[BenchRecord]:
    form = LONGBENCH[task]
    if form["score"] == "compute_rouge_l":
        metrics.import_benchmark_library("rouge")

    def make_bench_record(row: LongBenchRow, line_number: int) -> BenchRecord:
        if task == "trec" and row.all_classes is None:
            raise ValueError("'all_classes' is missing")
        prompt = fill_prompt_template(form["prompt"], row.context, input=row.input)
        data = {"classes": row.all_classes} if task == "trec" else {}
        return BenchRecord(
            "longbench", task, str(row.name or line_number), *prompt, row.answers,
            longest=form["longest"], chat=form.get("chat", True), data=data,
        )  # fmt: skip

    return read_json_rows(folder, [f"{task}.jsonl"], LongBenchRow, make_bench_record)


def score_longbench_output(record: BenchRecord, output: str) -> float:
    """Scores an output for LongBench by the right answer that gives the highest score."""
    if record.task in ("trec", "triviaqa", "samsum"):
        output = output.lstrip("\n").split("\n")[0]
    if record.task == "trec":
        classes = record.data["classes"]
        return max(metrics.score_named_classes(output, gold, classes) for gold in record.answers)
    rule: Callable[[str, str], float] = getattr(metrics, LONGBENCH[record.task]["score"])
    return max(rule(output, gold) for gold in record.answers)


CHOICES = ("longbook_choice_eng", "code_debug")


class InfiniteBenchRow(BaseModel):
    context: str = Field(validation_alias=AliasChoices("content", "context"))
    input: str
    answer: Texts
    options: Annotated[tuple[str, ...], BeforeValidator(lambda v: _list_json_texts(v or []))] = ()


def load_infinitebench_records(folder: Path, task: str) -> Iterator[BenchRecord]:
    def make_bench_record(row: InfiniteBenchRow, line_number: int) -> BenchRecord:
        fields = _make_prompt_template_values(row, task)
        prompt = fill_prompt_template(INFINITEBENCH[task]["prompt"], row.context, **fields)
        answers = _find_right_option_and_letter(row) if task in CHOICES else row.answer
        longest = 100 if task == "kv_retrieval" else 32
        return BenchRecord("infinitebench", task, str(line_number), *prompt, answers, longest)

    return read_json_rows(folder, [f"{task}.jsonl"], InfiniteBenchRow, make_bench_record)


def _find_right_option_and_letter(row: InfiniteBenchRow) -> tuple[str, ...]:
    answers = row.answer
    if len(answers) == 2 and answers[1] in "ABCD":
        return answers
    if answers[0] not in row.options:
        raise ValueError("'answer' in a row of InfiniteBench is not one of 'options'")
    return answers[0], "ABCD"[row.options.index(answers[0])]


def _make_prompt_template_values(row: InfiniteBenchRow, task: str) -> dict[str, str]:
    fields = {"input": row.input}
    if task in CHOICES:
        if len(row.options) != 4:
            raise ValueError("'options' in a row of InfiniteBench must have four values")
        fields |= dict(zip("ABCD", row.options, strict=True))
    elif task == "kv_retrieval":
        key = re.search('"[^"]*"', row.input)
        if key is None:
            raise ValueError("'input' in a row of InfiniteBench has no key in quotation marks")
        fields["key"] = key[0]
    elif task == "math_find":
        wanted = row.input.partition("The ")[2].rpartition(" of")[0]
        if not wanted or not re.fullmatch(r"-?\d+(\.\d+)?", row.answer[0]):
            raise ValueError("'input' or 'answer' in a row of InfiniteBench names no number")
        fields["prefix"] = f"What is the {wanted.lower()} in the following list?"
    return fields


def score_infinitebench_output(record: BenchRecord, output: str) -> float:
    score: float = getattr(metrics, INFINITEBENCH[record.task]["score"])(output, record.answers)
    return score


KINDS = ("searching", "reasoning")
VERSIONS = ((128, 32, 32), (256, 8, 32), (256, 16, 32), (256, 32, 32))
"""Thousands of tokens in the longest record, number of counts in a record, number of records."""
PRIME = '```json\n{"little_penguin": ['
_MISTAKEN = re.compile(r"The little penguin counted (\d+) ★, but found that a mistake")


class CountingStarsRow(BaseModel):
    question: str
    retrieval_question: str
    reference_counting_results: Annotated[tuple[int, ...], Field(min_length=1)]


def list_counting_stars_file_names(task: str) -> Sequence[str]:
    """Returns the two names under which the authors publish a file of Counting-Stars."""
    kind, k, m, n = task.split("-")
    end = f"{k.removesuffix('k')}000_{m}_{n}.jsonl"
    other = "acquisition" if kind == "searching" else kind
    return [f"Counting_Stars_EN_{n}_{end}" for n in (f"multi-evidence-retrieval-{kind}", other)]


def load_counting_stars_records(folder: Path, task: str) -> Iterator[BenchRecord]:
    def make_bench_record(row: CountingStarsRow, line_number: int) -> BenchRecord:
        asked = row.retrieval_question
        document = row.question.removesuffix(asked)
        if not asked or document == row.question:
            raise ValueError(
                "'question' in a row of Counting-Stars does not end with 'retrieval_question'"
            )
        right = row.reference_counting_results
        mistaken = tuple(int(count) for count in _MISTAKEN.findall(document))
        if task.startswith("reasoning") and len(mistaken) != len(right):
            raise ValueError(
                f"a text of Counting-Stars needs {len(right)} mistaken counts, got {len(mistaken)}"
            )
        return BenchRecord(
            "counting-stars", task, str(line_number), "", document, asked, tuple(map(str, right)),
            longest=256, prime=PRIME, data={"mistaken": mistaken},
        )  # fmt: skip

    file_names = list_counting_stars_file_names(task)
    return read_json_rows(folder, file_names, CountingStarsRow, make_bench_record)


def score_counting_stars_output(record: BenchRecord, output: str) -> float:
    mistaken = record.data["mistaken"] if record.task.startswith("reasoning") else None
    return metrics.score_star_counts(record.prime + output, record.answers, mistaken)


ESSAYS, NEEDLES = "PaulGrahamEssays.jsonl", "needles.jsonl"
NEEDLE_SOURCE = "hf download opencompass/NeedleBench --repo-type dataset --local-dir DIR"
REPEATS = 10
LENGTHS = (4, 8, 16, 48, 80, 112, 128, 144, 176, 200)
"""Lengths of NeedleBench's texts in thousands of gpt-4's tokens."""
BUFFERS = {4000: 1000, 8000: 1300}
"""Tokens reserved for question and answer in a text of this length; by default 3000."""
DEPTHS = (25, 50, 75)
FORMAT_PHRASE = "Please answer in the format"


class NeedleBenchEssayRow(BaseModel):
    text: str


class NeedleBenchNeedleRow(BaseModel):
    arg1: str = Field(pattern=r"\S")
    arg2: str = Field(pattern=r"\S")
    needle: str = Field(pattern=r"\S")
    retrieval_question: str
    language: str


def load_gpt4_tokenizer() -> Any:
    """Loads GPT-4's tokenizer, which tiktoken downloads once. Raises UsageError, DocumentError."""
    tiktoken = metrics.import_benchmark_library("tiktoken")
    try:
        return tiktoken.encoding_for_model("gpt-4")
    except Exception as error:
        raise DocumentError(
            f"the vocabulary of gpt-4 cannot be downloaded: {get_first_line(error)}",
            "set TIKTOKEN_CACHE_DIR to a copy of tiktoken's cache from a machine with a network",
        ) from error


def load_needlebench_records(folder: Path, task: str) -> Iterator[BenchRecord]:
    """Yields the records of a NeedleBench task, which hide the same needles in different orders."""
    length = int(task.rpartition("-")[2].removesuffix("k")) * 1000
    needles = _draw_english_needles(folder, len(DEPTHS))
    essays = list(read_json_rows(folder, [ESSAYS], NeedleBenchEssayRow, lambda row, _: row.text))
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


def _draw_english_needles(folder: Path, count: int) -> list[NeedleBenchNeedleRow]:
    """Draws English needles, no two with an equal `arg1` or `arg2`. Raises DocumentError."""

    def check_needle_fields(row: NeedleBenchNeedleRow, _line_number: int) -> NeedleBenchNeedleRow:
        question = row.retrieval_question
        if row.language == "English" and (FORMAT_PHRASE not in question or question.count("'") < 2):
            raise ValueError(
                f"'retrieval_question' in a row of NeedleBench lacks {FORMAT_PHRASE!r}"
            )
        return row

    rows = read_json_rows(folder, [NEEDLES], NeedleBenchNeedleRow, check_needle_fields)
    english = [row for row in rows if row.language == "English"]
    Random(0).shuffle(english)
    drawn: list[NeedleBenchNeedleRow] = []
    for row in english:
        if all(row.arg1 != other.arg1 and row.arg2 != other.arg2 for other in drawn):
            drawn.append(row)
        if len(drawn) == count:
            return drawn
    message = f"{NEEDLES} has fewer than {count} English needles with different arg1 and arg2"
    raise DocumentError(message, f"download NeedleBench's official files: {NEEDLE_SOURCE}")


def _make_benchmark_tasks(task_table: TaskTable, group_title: str) -> tuple[BenchTask, ...]:
    rows = task_table.items()
    return tuple(BenchTask(name, row["title"], group_title, row["size"]) for name, row in rows)


BENCHMARKS: dict[str, Benchmark] = {
    "longbench": Benchmark(
        tasks=_make_benchmark_tasks(LONGBENCH, "LongBench"),
        source="hf download THUDM/LongBench data.zip --repo-type dataset --local-dir DIR, unpacked",
        read=load_longbench_records, score=score_longbench_output, length=32_000,
    ),
    "infinitebench": Benchmark(
        tasks=_make_benchmark_tasks(INFINITEBENCH, "InfiniteBench"),
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
        files=list_counting_stars_file_names,
        read=load_counting_stars_records, score=score_counting_stars_output, length=200_000,
    ),
    "needlebench": Benchmark(
        tasks=tuple(BenchTask(f"m-rt-{k}k", f"{k}k", "NeedleBench M-RT", REPEATS) for k in LENGTHS),
        source=NEEDLE_SOURCE,
        files=lambda task: [NEEDLES],
        read=load_needlebench_records,
        score=lambda record, text: metrics.compute_share_of_found_keywords(text, record.answers),
        length=200_000,
        notes={
            "": "If all essays together are shorter than a task's length, the task's texts are "
            "shorter, too, as in OpenCompass."
        },
    ),
}  # fmt: skip
