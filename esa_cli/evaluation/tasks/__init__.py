"""The self-tests: their documents, questions and scores, as pure functions.

    haystack  the text around the facts: the generated chronicle, or the user's files
    plant     puts facts into it, and says where they stand
    needle, needles, stars, passkey, number, kv, niah, own
              the tests; each takes its prompt and its score from the benchmark it names

Nothing here knows a model; tokens are counted by the function in the request. `length` is that of
the document; the words around it, question and answer come on top.
"""

from __future__ import annotations

from esa_cli.errors import UsageError
from esa_cli.evaluation.tasks.haystack_text import Haystack
from esa_cli.evaluation.tasks.key_value_task import KeyValue
from esa_cli.evaluation.tasks.multi_needle_task import ManyNeedles
from esa_cli.evaluation.tasks.needle_task import SingleNeedle
from esa_cli.evaluation.tasks.own_document_task import OwnDocument
from esa_cli.evaluation.tasks.passkey_task import NUMBER, PASSKEY
from esa_cli.evaluation.tasks.ruler_niah_task import MagicNumbers
from esa_cli.evaluation.tasks.stars_task import Stars
from esa_cli.evaluation.tasks.task_sample import Fact, Probe, Question, Request, Sample
from esa_cli.system.registry import nearest

__all__ = ["PROBES", "Fact", "Haystack", "Probe", "Question", "Request", "Sample", "probe"]

_ALL: tuple[Probe, ...] = (
    SingleNeedle(),
    ManyNeedles(),
    Stars(),
    PASSKEY,
    NUMBER,
    KeyValue(),
    MagicNumbers(),
    OwnDocument(),
)
PROBES: dict[str, Probe] = {one.name: one for one in _ALL}
"""Every self-test by name."""


def probe(name: str) -> Probe:
    """The self-test of this name.

    Raises:
        UsageError: there is none; the hint names the nearest.
    """
    if name not in PROBES:
        raise UsageError(f"there is no test {name!r}", nearest(name, list(PROBES)))
    return PROBES[name]
