"""A key's value in a long JSON object: InfiniteBench Retrieve.KV.

Source: InfiniteBench (Zhang et al., 2024), with InfLLM's prompts and length of answers. The
object's keys and values are random UUIDs, as many as the length holds (the benchmark has 2,500
pairs). The score is whether the value is one of the output's words, punctuation taken for spaces.
The benchmark names the key in front of the object too, so the exact form reads a document for each
question. The shared form leaves the key out there, and asks many questions of one document. The
haystack plays no part.
"""

from __future__ import annotations

from collections.abc import Iterator

from esa_cli.errors import UsageError
from esa_cli.evaluation import metrics
from esa_cli.evaluation.tasks.task_sample import (
    StableRandom,
    TaskQuestion,
    TaskRequest,
    TaskSample,
    depths_of,
    fact_at,
)

HEAD, TAIL = "JSON data:\n{", "}"
BEFORE = "Extract the value corresponding to the specified key{key} in the JSON object below.\n\n"
AFTER = "\n\n\n{question} "
QUESTION = 'Key: "{key}"\nThe value associated with the specified key is:'
LONGEST = 100


def fill(request: TaskRequest, dice: StableRandom) -> list[tuple[str, str]]:
    """As many pairs as the length allows."""
    left = request.length - request.size(HEAD + TAIL)
    out: list[tuple[str, str]] = []
    # Counted after another pair, since tokenizers may merge the two.
    lead = '"a": "b", '
    least = request.size(lead)
    while True:
        key, value = dice.uuid(), dice.uuid()
        taken = request.size(f'{lead}"{key}": "{value}", ') - least
        # The last pair is in if more than half of it fits, so the length is nearest.
        if left < taken / 2:
            return out
        left -= taken
        out.append((key, value))


def places(depths: tuple[float, ...], count: int) -> list[int]:
    """Indices of different pairs at these depths, or next to them."""
    taken: list[int] = []
    for depth in depths:
        wanted = min(int(depth * count), count - 1)
        free = (at for at in range(count) if at not in taken)
        taken.append(min(free, key=lambda at: abs(at - wanted)))
    return taken


class KeyValue:
    name = "kv"

    def samples(self, request: TaskRequest) -> Iterator[TaskSample]:
        depths = depths_of(request, request.samples)
        if not request.exact:
            yield self._sample(request, 0, depths)
            return
        for index, depth in enumerate(depths):
            yield self._sample(request, index, (depth,))

    def _sample(self, request: TaskRequest, index: int, depths: tuple[float, ...]) -> TaskSample:
        pairs = fill(request, StableRandom(self.name, request.length, request.seed, index))
        if len(pairs) < 2 * len(depths):
            raise UsageError(
                f"pairs must be at least {2 * len(depths)} for {len(depths)} questions, got "
                f"{len(pairs)} in {request.length} tokens",
                "ask for fewer samples or a greater length",
            )
        lines = [f'"{key}": "{value}"' for key, value in pairs]
        text = HEAD + ", ".join(lines) + TAIL
        asked = places(depths, len(pairs))
        questions = tuple(
            TaskQuestion(
                f"pair-{number}",
                QUESTION.format(key=pairs[at][0]),
                (pairs[at][1],),
                (number,),
                LONGEST,
            )
            for number, at in enumerate(asked)
        )
        facts = tuple(fact_at(text, text.index(lines[at]), lines[at]) for at in asked)
        key = f' "{pairs[asked[0]][0]}"' if request.exact else ""
        return TaskSample(
            self.name, request.length, index, text, facts, questions, BEFORE.format(key=key), AFTER
        )

    def score(self, question: TaskQuestion, output: str) -> float:
        return metrics.contains_word(output, question.answers[0])
