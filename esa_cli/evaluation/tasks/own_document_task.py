"""The needles of `needle_task` planted in the user's own document.

Source: none; this is a check of one's own document, not a benchmark. The document is used whole,
so the requested length plays no part.
"""

from __future__ import annotations

from collections.abc import Iterator

from esa_cli.errors import UsageError
from esa_cli.evaluation.tasks.needle_task import answered, ask, chosen
from esa_cli.evaluation.tasks.planting import depths_of, plant
from esa_cli.evaluation.tasks.task_sample import TaskQuestion, TaskRequest, TaskSample


class OwnDocument:
    name = "own"

    def samples(self, request: TaskRequest) -> Iterator[TaskSample]:
        if not request.haystack.text:
            raise UsageError(
                f"the test own needs a document of yours, and {request.haystack.name} is generated",
                "name a text file",
            )
        needles = chosen(request)
        sentences = [needle.text for needle in needles]
        text, facts = plant(request.haystack.text, sentences, depths_of(request, len(needles)))
        questions = tuple(ask(needle, fact) for fact, needle in enumerate(needles))
        yield TaskSample(self.name, request.size(text), 0, text, facts, questions)

    def score(self, question: TaskQuestion, output: str) -> float:
        return answered(output, question.answers)
