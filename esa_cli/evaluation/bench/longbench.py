"""LongBench, the 16 English tasks of the paper's table.

Prompts and answer lengths are those of the benchmark's `config/dataset2prompt.json` and
`config/dataset2maxlen.json`; they are part of its definition. Its five Chinese tasks need a word
splitter and are left out. The official code cuts long prompts in the middle; nothing is cut here.
It stops samsum at the first line break; here the score takes the first line, as it does there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from esa_cli.evaluation import metrics
from esa_cli.evaluation.bench import data_files as files
from esa_cli.evaluation.bench.bench_record import BenchRecord, BenchTask, split

SOURCE = "TASK.jsonl from data.zip of the dataset THUDM/LongBench on the Hugging Face hub"
NOTES: dict[str, str] = {}
LENGTH = 32_000
MINI = "longbench_mini.jsonl"
"""A few records of all tasks in one file, each with its prompt and the context's place in it; where
that prompt is not the official one, its question too."""

_ALL = "LongBench"
TASKS: tuple[BenchTask, ...] = (
    BenchTask("narrativeqa", "NarrativeQA", _ALL, 200),
    BenchTask("qasper", "Qasper", _ALL, 200),
    BenchTask("multifieldqa_en", "MultiFieldQA-en", _ALL, 150),
    BenchTask("musique", "MuSiQue", _ALL, 200),
    BenchTask("hotpotqa", "HotpotQA", _ALL, 200),
    BenchTask("2wikimqa", "2WikiMultihopQA", _ALL, 200),
    BenchTask("gov_report", "GovReport", _ALL, 200),
    BenchTask("qmsum", "QMSum", _ALL, 200),
    BenchTask("multi_news", "MultiNews", _ALL, 200),
    BenchTask("trec", "TREC", _ALL, 200),
    BenchTask("triviaqa", "TriviaQA", _ALL, 200),
    BenchTask("samsum", "SAMSum", _ALL, 200),
    BenchTask("passage_retrieval_en", "PassageRetrieval-en", _ALL, 200),
    BenchTask("passage_count", "PassageCount", _ALL, 200),
    BenchTask("lcc", "LCC", _ALL, 500),
    BenchTask("repobench-p", "RepoBench-P", _ALL, 500),
)
WITHOUT_CHAT = ("trec", "triviaqa", "samsum", "lcc", "repobench-p")
FIRST_LINE = ("trec", "triviaqa", "samsum")
LONGEST = {
    "narrativeqa": 128, "qasper": 128, "multifieldqa_en": 64, "musique": 32, "hotpotqa": 32,
    "2wikimqa": 32, "gov_report": 512, "qmsum": 512, "multi_news": 512, "trec": 64,
    "triviaqa": 32, "samsum": 128, "passage_retrieval_en": 32, "passage_count": 32, "lcc": 64,
    "repobench-p": 64,
}  # fmt: skip

_PASSAGES = (
    "Answer the question based on the given passages. Only give me the answer and do not "
    "output any other words.\n\nThe following are given passages.\n{context}\n\nAnswer the "
    "question based on the given passages. Only give me the answer and do not output any "
    "other words.\n\nQuestion: {input}\nAnswer:"
)
PROMPTS = {
    "narrativeqa": (
        "You are given a story, which can be either a novel or a movie script, and a "
        "question. Answer the question asconcisely as you can, using a single phrase if "
        "possible. Do not provide any explanation.\n\nStory: {context}\n\nNow, answer the "
        "question based on the story asconcisely as you can, using a single phrase if "
        "possible. Do not provide any explanation.\n\nQuestion: {input}\n\nAnswer:"
    ),
    "qasper": (
        "You are given a scientific article and a question. Answer the question as "
        "concisely as you can, using a single phrase or sentence if possible. If the "
        "question cannot be answered based on the information in the article, write "
        '"unanswerable". If the question is a yes/no question, answer "yes", "no", '
        'or "unanswerable". Do not provide any explanation.\n\nArticle: {context}\n\n '
        "Answer the question based on the above article as concisely as you can, using a "
        "single phrase or sentence if possible. If the question cannot be answered based "
        'on the information in the article, write "unanswerable". If the question is a '
        'yes/no question, answer "yes", "no", or "unanswerable". Do not provide any '
        "explanation.\n\nQuestion: {input}\n\nAnswer:"
    ),
    "multifieldqa_en": (
        "Read the following text and answer briefly.\n\n{context}\n\nNow, answer the "
        "following question based on the above text, only give me the answer and do not "
        "output any other words.\n\nQuestion: {input}\nAnswer:"
    ),
    "musique": _PASSAGES,
    "hotpotqa": _PASSAGES,
    "2wikimqa": _PASSAGES,
    "gov_report": (
        "You are given a report by a government agency. Write a one-page summary of the "
        "report.\n\nReport:\n{context}\n\nNow, write a one-page summary of the report.\n\n"
        "Summary:"
    ),
    "qmsum": (
        "You are given a meeting transcript and a query containing a question or "
        "instruction. Answer the query in one or more sentences.\n\nTranscript:\n{context}"
        "\n\nNow, answer the query based on the above meeting transcript in one or more "
        "sentences.\n\nQuery: {input}\nAnswer:"
    ),
    "multi_news": (
        "You are given several news passages. Write a one-page summary of all news. \n\n"
        "News:\n{context}\n\nNow, write a one-page summary of all the news.\n\nSummary:"
    ),
    "trec": (
        "Please determine the type of the question below. Here are some examples of "
        "questions.\n\n{context}\n{input}"
    ),
    "triviaqa": (
        "Answer the question based on the given passage. Only give me the answer and do "
        "not output any other words. The following are some examples.\n\n{context}\n\n"
        "{input}"
    ),
    "samsum": (
        "Summarize the dialogue into a few short sentences. The following are some "
        "examples.\n\n{context}\n\n{input}"
    ),
    "passage_retrieval_en": (
        "Here are 30 paragraphs from Wikipedia, along with an abstract. Please determine "
        "which paragraph the abstract is from.\n\n{context}\n\nThe following is an "
        "abstract.\n\n{input}\n\nPlease enter the number of the paragraph that the "
        'abstract is from. The answer format must be like "Paragraph 1", "Paragraph '
        '2", etc.\n\nThe answer is: '
    ),
    "passage_count": (
        "There are some paragraphs below sourced from Wikipedia. Some of them may be "
        "duplicates. Please carefully read these paragraphs and determine how many unique "
        "paragraphs there are after removing duplicates. In other words, how many "
        "non-repeating paragraphs are there in total?\n\n{context}\n\nPlease enter the "
        "final count of unique paragraphs after removing duplicates. The output format "
        "should only contain the number, such as 1, 2, 3, and so on.\n\nThe final answer "
        "is: "
    ),
    "lcc": "Please complete the code given below. \n{context}Next line of code:\n",
    "repobench-p": "Please complete the code given below. \n{context}{input}Next line of code:\n",
}
_SCORES = {
    "gov_report": metrics.rouge_l,
    "qmsum": metrics.rouge_l,
    "multi_news": metrics.rouge_l,
    "samsum": metrics.rouge_l,
    "passage_retrieval_en": metrics.paragraph_share,
    "passage_count": metrics.number_share,
    "lcc": metrics.code_similarity,
    "repobench-p": metrics.code_similarity,
}
"""The other tasks are scored by F1, TREC by its classes."""


def there(folder: Path) -> list[str]:
    """The tasks whose files are in the folder."""
    mini = files.find(folder, MINI)
    some = {row.data.get("task") for row in files.rows(mini)} if mini else set()
    return [
        task.name for task in TASKS if task.name in some or files.find(folder, f"{task.name}.jsonl")
    ]


def load(folder: Path, tasks: Sequence[str], limit: int | None) -> Iterator[BenchRecord]:
    """The first `limit` records of each task. Raises DocumentError, UsageError."""
    if any(_SCORES.get(task) is metrics.rouge_l for task in tasks):
        metrics.library("rouge")
    for task in tasks:
        yield from islice(_records(folder, task), limit)


def _records(folder: Path, task: str) -> Iterator[BenchRecord]:
    path = files.need(folder, SOURCE, f"{task}.jsonl", MINI)
    for row in files.rows(path):
        if path.name == MINI:
            if row.data.get("task") == task:
                yield _mini(row, task)
        else:
            parts = split(PROMPTS[task], row.text("context"), input=row.text("input"))
            yield _record(row, task, parts, row.data.get("_id"))


def _record(
    row: files.DataRow, task: str, parts: tuple[str, str, str], name: object
) -> BenchRecord:
    return BenchRecord(
        "longbench",
        task,
        str(name or row.line),
        *parts,
        answers=row.texts("answers"),
        longest=LONGEST[task],
        chat=task not in WITHOUT_CHAT,
        data={"classes": row.texts("all_classes")} if task == "trec" else {},
    )


def _mini(row: files.DataRow, task: str) -> BenchRecord:
    prompt, span = row.text("prompt"), row.numbers("context_span")
    start, stop = (span[0], span[-1]) if len(span) == 2 else (0, 0)
    if not 0 <= start < stop <= len(prompt):
        raise row.wrong("'context_span' is no part of the prompt")
    parts = prompt[:start], prompt[start:stop], prompt[stop:]
    if row.data.get("official_prompt_if_different"):
        parts = split(PROMPTS[task], parts[1], input=row.text("question"))
    return _record(row, task, parts, None)


def score(record: BenchRecord, output: str) -> float:
    """The best over the answers."""
    if record.task in FIRST_LINE:
        output = metrics.first_line(output)
    if record.task == "trec":
        classes = record.data["classes"]
        return max(metrics.class_share(output, gold, classes) for gold in record.answers)
    rule = _SCORES.get(record.task, metrics.qa_f1)
    return max(rule(output, gold) for gold in record.answers)
