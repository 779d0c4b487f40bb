"""How `esa heads` finds heads: by needles in a text, or by real questions."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esa_cli.apps.cli.commands.heads_request import HeadsRequest
from esa_cli.version import __version__

if TYPE_CHECKING:
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.evaluation.calibration.head_ranking import VoteJournal
    from esa_cli.evaluation.calibration.retrieval_heads import RetrievalHeads
    from esa_cli.evaluation.tasks.task_sample import TaskSample
    from esa_cli.qa.presets.preset import Preset


@dataclass(frozen=True)
class HeadsSearch:
    """How heads are found; `facts` are entries of the JSON object.

    Args:
        tokens: of the text; 0: up to the preset's context. check: raises UsageError where it can
            be seen without the model that too few questions can be asked.
    """

    tokens: int
    check: Callable[[Any, Preset], None]
    find: Callable[[Any, Preset, Reporter, VoteJournal], RetrievalHeads]
    facts: dict[str, Any]


def by_needles(wanted: HeadsRequest) -> HeadsSearch:
    """By needles in a text. Raises DocumentError: the haystack cannot be read."""
    from esa_cli.evaluation.tasks import Haystack, find_task
    from esa_cli.evaluation.tasks.task_sample import TaskRequest

    given = wanted.haystack
    hay = Haystack.chronicle(wanted.seed) if given is None else Haystack.read(str(given))

    def planted(tokenizer: Any) -> TaskSample:
        def size(text: str) -> int:
            return len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

        request = TaskRequest(
            wanted.tokens, size, hay, None, wanted.needles, wanted.seed, exact=False
        )
        return next(iter(find_task("needle").samples(request)))

    def check(tokenizer: Any, chosen: Preset) -> None:
        from esa_cli.evaluation.calibration.retrieval_heads import check_needles

        check_needles(tokenizer, chosen, planted(tokenizer))

    def find(
        loaded: Any, chosen: Preset, reporter: Reporter, journal: VoteJournal
    ) -> RetrievalHeads:
        from esa_cli.apps.cli.output import progress_display as progress
        from esa_cli.evaluation.calibration.retrieval_heads import find

        sample = planted(loaded.tokenizer)
        label = f"reading {hay.name} with {wanted.needles} needles"
        reading = progress.token_progress(reporter, label)
        asking = partial(reporter.stage, "reading questions")
        return find(loaded, chosen, sample, reading, asking, journal)

    facts = {"length": wanted.tokens, "needles": wanted.needles, "haystack": hay.name}
    return HeadsSearch(wanted.tokens, check, find, facts)


def by_pairs(wanted: HeadsRequest, pairs: Path, texts: Path) -> HeadsSearch:
    """By real questions. Raises DocumentError, UsageError: the pairs, or none of such a kind."""
    from esa_cli.evaluation.calibration.pair_heads import draw_pairs, pair_contexts
    from esa_cli.evaluation.calibration.question_pairs import read_training_texts

    read = read_training_texts(pairs, texts)
    drawn = draw_pairs(read, wanted.kinds, wanted.drawn, wanted.seed)

    def find(
        loaded: Any, chosen: Preset, reporter: Reporter, journal: VoteJournal
    ) -> RetrievalHeads:
        from esa_cli.evaluation.calibration.pair_heads import find_by_pairs
        from esa_cli.qa.answering.prompt import PromptTokens

        prompt, preparing = PromptTokens(loaded.tokenizer, chosen.prompt), "choosing windows"
        contexts = pair_contexts(
            read, drawn, prompt, chosen.context, wanted.seed, partial(reporter.stage, preparing)
        )
        count, asking = sum(map(len, drawn.values())), partial(reporter.stage, "reading questions")
        return find_by_pairs(loaded, chosen, [*contexts], count, asking, journal)

    facts = {"pairs": str(pairs), "texts": str(texts), "kinds": wanted.kinds}
    return HeadsSearch(0, lambda *_: None, find, {**facts, "samples": wanted.drawn})


def open_journal(
    wanted: HeadsRequest, chosen: Preset, facts: dict[str, Any], dtype: str
) -> VoteJournal:
    """The records of an earlier run with the same model, settings and questions.

    Raises:
        UsageError: the file of --journal has others. DocumentError: it cannot be read.
    """
    from esa_cli.evaluation.calibration.head_ranking import VoteJournal

    header = {
        "esa": __version__,
        "command": shlex.join(["esa", *sys.argv[1:]]),
        "model": chosen.model,
        "dtype": dtype,
        "seed": wanted.seed,
        **facts,
        "settings": chosen.model_dump(
            include={"context", "window", "selector", "score", "position", "reading", "prompt"}
        ),
    }
    return VoteJournal(wanted.journal, header)
