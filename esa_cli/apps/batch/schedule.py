"""In which order sets of documents are asked about, so that few documents are read twice.

    groups      questions about the same documents
    order       next is the group that needs the fewest documents that were not read yet, among
                those that share one with what was read; else the first that is left

Ties go to the first question. So a set comes right behind the sets that read its documents, and the
rest keep the order of the file. Knows no model and reads nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush

from esa_cli.apps.batch.batch_questions import Question
from esa_cli.documents.document import Meant

Group = list[tuple[int, Question]]
"""Questions with their places, all about the same documents."""


def groups(questions: Sequence[Question], wanted: Callable[[int], bool]) -> list[Group]:
    """The questions that are wanted, by their documents, in the order to ask them."""
    found: dict[Meant, Group] = {}
    for index, one in enumerate(questions):
        if wanted(index):
            found.setdefault(one.meant, []).append((index, one))
    every = list(found.values())
    return [every[at] for at in order([set(means.paths) for means in found])]


def order(sets: Sequence[set[str]]) -> Iterator[int]:
    """The places of the sets, each once."""
    users: dict[str, list[int]] = {}
    for at, paths in enumerate(sets):
        for path in paths:
            users.setdefault(path, []).append(at)
    unread = [len(paths) for paths in sets]
    done = [False] * len(sets)
    # (1, 0, place): shares nothing yet; (0, documents not read yet, place): shares something.
    waiting = [(1, 0, at) for at in range(len(sets))]
    heapify(waiting)
    read: set[str] = set()
    while waiting:
        at = heappop(waiting)[-1]
        if done[at]:  # it has come before, when it needed more
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
