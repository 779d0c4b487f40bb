"""The order in which a batch asks its questions, so that few documents are ingested twice.

    groups      questions about the same documents
    order       the next group is the one with the fewest documents not ingested yet, among those
                that share one with the ingested; if none does, the first in the file

The earlier question wins a tie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush

from esa_cli.apps.batch.batch_questions import BatchQuestion
from esa_cli.documents.document import SourceFiles
from esa_cli.system.work_shard import WorkShard

Group = list[tuple[int, BatchQuestion]]
"""Questions about the same documents, with their indices."""


def groups(questions: Sequence[BatchQuestion], wanted: Callable[[int], bool]) -> list[Group]:
    """The wanted questions by their documents, in the order to ask them."""
    found: dict[SourceFiles, Group] = {}
    for index, one in enumerate(questions):
        if wanted(index):
            found.setdefault(one.meant, []).append((index, one))
    every = list(found.values())
    return [every[at] for at in order([set(means.paths) for means in found])]


def shard_of_questions(questions: Sequence[BatchQuestion], shard: WorkShard) -> list[BatchQuestion]:
    """The questions of a shard, in the order of the file: a stretch of the order in which they are
    asked, so that few documents are in two shards."""
    if shard.whole:
        return list(questions)
    asked = [index for group in groups(questions, lambda index: True) for index, _ in group]
    return [questions[index] for index in sorted(shard.block(asked))]


def order(sets: Sequence[set[str]]) -> Iterator[int]:
    """The indices of the sets, each once."""
    users: dict[str, list[int]] = {}
    for at, paths in enumerate(sets):
        for path in paths:
            users.setdefault(path, []).append(at)
    unread = [len(paths) for paths in sets]
    done = [False] * len(sets)
    # (1, 0, index): shares nothing yet; (0, documents not ingested yet, index): shares some.
    waiting = [(1, 0, at) for at in range(len(sets))]
    heapify(waiting)
    read: set[str] = set()
    while waiting:
        at = heappop(waiting)[-1]
        if done[at]:  # yielded already, from an entry with more documents
            continue
        done[at] = True
        yield at
        touched = set[int]()
        for path in sets[at] - read:
            for user in users[path]:
                unread[user] -= 1
                touched.add(user)
        read |= sets[at]
        for user in touched:
            if not done[user]:
                heappush(waiting, (0, unread[user], user))
