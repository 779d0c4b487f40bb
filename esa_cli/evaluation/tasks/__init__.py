"""The tests of `esa selftest`, which make documents with questions, and score answers."""

from __future__ import annotations

from functools import partial

from esa_cli.evaluation import metrics
from esa_cli.evaluation.tasks import key_tasks, needle_tasks
from esa_cli.evaluation.tasks.chronicle_task import contains_answer
from esa_cli.evaluation.tasks.task_sample import SelftestTask

_make_keys = key_tasks.make_hidden_key_document
TASKS: dict[str, SelftestTask] = {
    "needle": SelftestTask(needle_tasks.make_single_needle_document, contains_answer),
    "needles": SelftestTask(
        needle_tasks.make_multi_needle_documents, metrics.compute_share_of_found_keywords
    ),
    "stars": SelftestTask(needle_tasks.make_counting_stars_documents, metrics.score_star_counts),
    "passkey": SelftestTask(partial(_make_keys, key_tasks.PASSKEY), metrics.score_first_integer),
    "number": SelftestTask(partial(_make_keys, key_tasks.NUMBER), metrics.score_first_integer),
    "kv": SelftestTask(key_tasks.make_key_value_document, metrics.score_contained_gold_word),
    "niah": SelftestTask(
        key_tasks.make_magic_number_document, metrics.compute_share_of_found_answers
    ),
    "own": SelftestTask(needle_tasks.plant_needles_in_user_document, contains_answer),
}
"""The tasks of all self-tests by name."""
