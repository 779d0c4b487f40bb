"""Rows of a question and a passage for the training of a reader, in batches of a few lengths.

A pair has the row of its answer's passage, one of a question that this passage does not answer, and
some of wrong windows; they stay in one batch, where the right passage competes with the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from training_data import ABSENT, AFTER_PASSAGE, Integers, TrainingData, encode_texts, pad_lists
from training_loop import Batch, BatchGroups, TrainingSettings

WORDS = (4, 110)
"""The fewest and the most words of sentences around an answer; as many have few as many words."""
ABSENT_WORDS = (4, 110)
"""The fewest and the most words of sentences in the passage of an absent question."""
LOWER = 0.15
"""The share of questions that are asked in lower case."""
WINDOW = 0.5
"""The share of right passages that are one of the text's windows, not sentences around."""
DECAY = 5.0
"""The mean of the exponential draw from wrong windows, the best of which is number 0."""
POOL = 1500
"""The number of pairs whose rows are sorted by length together."""
AHEAD = 40
"""The number of pairs that a batch's length must be enough for, if there are as many."""
NOISE = 8
"""Tokens by which the order of lengths is random."""
LENGTHS = (112, 144, 184, 240, 336, 448)
"""The lengths of batches; longer rows are left out."""


@dataclass(frozen=True, kw_only=True)
class ReaderSettings(TrainingSettings):
    """Settings of a reader's training.

    Args:
        rank: of the LoRA matrices. tokens: of a batch. wrong: wrong windows of a question at most.
        swapped: how probable a swapped question is, if a pair has one.
    """

    minutes: float = 2.5
    lr: float = 8e-4
    head_lr: float = 5.0
    warm_up: int = 40
    rank: int = 24
    tokens: int = 32768
    wrong: int = 2
    swapped: float = 0.8


class ReaderRow(NamedTuple):
    """The token ids of a prompt with a passage, the passage's tokens [first, last) in the prompt,
    and the first and the last token of the answer in the prompt, None without an answer."""

    ids: Integers
    passage: tuple[int, int]
    answer: tuple[int, int] | None


class ReaderBatches(BatchGroups):
    """Groups of batches of the rows of `POOL` pairs, in another order in each epoch.

    Args:
        wrong_windows: (P, n), the numbers of windows without each pair's answer, the best first,
            padded with -1.
    """

    def __init__(
        self, data: TrainingData, tokenizer: Any, settings: ReaderSettings, wrong_windows: Integers
    ) -> None:
        self.data, self.settings, self.wrong_windows = data, settings, wrong_windows
        (self._end,) = encode_texts([AFTER_PASSAGE], tokenizer)

    def __getitem__(self, number: int) -> list[Batch]:
        seed, count = self.settings.seed, len(self.data.pairs.text)
        epoch, pool = divmod(number, -(-count // POOL))
        random = np.random.default_rng((seed, epoch, 0))
        order = random.permutation(count)
        rng = np.random.default_rng((seed, number))
        units = []
        for pair in order[pool * POOL : (pool + 1) * POOL]:
            rows = [row for row in self.make_rows(int(pair), rng) if len(row.ids) <= LENGTHS[-1]]
            if rows:
                units.append(rows)
        noise = rng.random(len(units)) * NOISE
        sizes = [max(len(row.ids) for row in rows) for rows in units]
        units = [units[at] for at in np.argsort(np.array(sizes) + noise)]
        batches = self._pack_units(units)
        return [batches[at] for at in rng.permutation(len(batches))]

    def make_rows(self, pair: int, rng: np.random.Generator) -> list[ReaderRow]:
        """Makes the rows of a pair, first the one of its own passage."""
        data, table = self.data, self.data.pairs
        text, lower = int(table.text[pair]), rng.random() < LOWER
        question = data.prompts["reader_lower" if lower else "reader"][pair]
        if table.kind[pair] == ABSENT:
            first, last = table.line_passages[pair].tolist()
            if rng.random() < 0.5:
                middle = (first + last) // 2
                first, last = self._draw_sentences(text, middle, middle + 1, ABSENT_WORDS, rng)
            return [self._make_row(question, text, first, last)]
        first, last = answer = table.line_answers[pair].tolist()
        windows = self._find_windows(text, first, last) if rng.random() < WINDOW else []
        if windows:
            first, last = windows[int(rng.integers(len(windows)))]
        else:
            first, last = self._draw_sentences(text, first, last, WORDS, rng)
        rows = [self._make_row(question, text, first, last, (answer[0], answer[1]))]
        low, high = table.swap_ends[pair : pair + 2].tolist()
        if high > low and rng.random() < self.settings.swapped:
            other = data.prompts["swapped"][int(rng.integers(low, high))]
            rows.append(self._make_row(other, text, first, last))
        return rows + self._make_wrong_rows(question, pair, rng)

    def _make_wrong_rows(
        self, question: Integers, pair: int, rng: np.random.Generator
    ) -> list[ReaderRow]:
        text, numbers = int(self.data.pairs.text[pair]), self.wrong_windows[pair]
        numbers = numbers[numbers >= 0]
        if not len(numbers):
            return []
        draws = rng.exponential(DECAY, self.settings.wrong).astype(int)
        places = np.unique(draws.clip(max=len(numbers) - 1))
        windows = self.data.lines[text].windows[numbers[places]]
        parts = [self._draw_part(text, int(a), int(b), rng) for a, b in windows]
        return [self._make_row(question, text, a, b) for a, b in parts]

    def _draw_part(
        self, text: int, first: int, last: int, rng: np.random.Generator
    ) -> tuple[int, int]:
        """Returns a window's tokens [first, last), or every second time those of some of its
        sentences, so that not only right passages are short."""
        if rng.random() < WINDOW:
            return first, last
        middle = int(rng.integers(first, last))
        low, high = self._draw_sentences(text, middle, middle + 1, WORDS, rng)
        low, high = max(low, first), min(high, last)
        return (low, high) if low < high else (first, last)

    def _make_row(
        self, question: Integers, text: int, first: int, last: int,
        answer: tuple[int, int] | None = None,
    ) -> ReaderRow:  # fmt: skip
        passage, start = self.data.lines[text].ids[first:last], len(question)
        ids = np.concatenate((question, passage, self._end))
        if answer is not None:
            shift = start - first
            answer = answer[0] + shift, max(answer[1] - 1, answer[0]) + shift
        return ReaderRow(ids, (start, start + len(passage)), answer)

    def _find_windows(self, text: int, first: int, last: int) -> list[tuple[int, int]]:
        """Returns the windows that contain the tokens [first, last)."""
        windows = self.data.lines[text].windows
        inside = (windows[:, 0] <= first) & (windows[:, 1] >= last)
        return [(int(a), int(b)) for a, b in windows[inside]]

    def _draw_sentences(
        self, text: int, first: int, last: int, words: tuple[int, int], rng: np.random.Generator
    ) -> tuple[int, int]:
        """Returns the tokens of sentences that contain [first, last), with about a random number of
        words; the sentences before and after are added in random order."""
        line = self.data.lines[text]
        starts, ends = line.sentences.T
        low = max(0, int(np.searchsorted(starts, first, side="right")) - 1)
        high = max(low + 1, int(np.searchsorted(starts, last)))
        target, total = np.exp(rng.uniform(*np.log(words))), line.words[low:high].sum()
        while total < target:
            before = rng.random() < 0.5
            if before and low > 0:
                low -= 1
                total += line.words[low]
            elif high < len(starts):
                total += line.words[high]
                high += 1
            else:
                break
        return min(int(starts[low]), first), max(int(ends[high - 1]), last)

    def _pack_units(self, units: Sequence[Sequence[ReaderRow]]) -> list[Batch]:
        """Packs the rows of pairs, ordered by length, into batches, but for those of the longest
        rows that fill less than half of a batch."""
        batches, at = list[Batch](), 0
        while at < len(units):
            length = max(len(row.ids) for row in units[min(at + AHEAD, len(units) - 1)])
            width = next(one for one in LENGTHS if one >= length)
            count = max(1, self.settings.tokens // width)
            rows, groups = list[ReaderRow](), list[list[int]]()
            while at < len(units) and len(rows) + len(units[at]) <= count:
                if max(len(row.ids) for row in units[at]) > width:
                    break
                if units[at][0].answer and len(units[at]) > 1:
                    groups.append([*range(len(rows), len(rows) + len(units[at]))])
                rows += units[at]
                at += 1
            if not rows:
                at += 1  # The rows of a pair are too many for a batch.
            elif 2 * len(rows) >= count or not batches:
                batches.append(self._make_batch(rows, groups, count, width))
        return batches

    def _make_batch(
        self, rows: Sequence[ReaderRow], groups: Sequence[Sequence[int]], count: int, width: int
    ) -> Batch:
        """Makes a batch of B rows with T tokens, of which the last may be empty: `ids` (B, T),
        `lengths` (B,), `passage` and `answer` (B, 2), `has` (B,), whether there is an answer, and
        `groups` (G, n), the rows of pairs whose first row is right, padded with -1."""
        ids, lengths = pad_lists([row.ids for row in rows], count, width)
        places = torch.zeros(2, count, 2, dtype=torch.long)
        has = torch.zeros(count, dtype=torch.bool)
        for at, row in enumerate(rows):
            places[0, at] = torch.tensor(row.passage)
            if row.answer is not None:
                places[1, at], has[at] = torch.tensor(row.answer), True
        numbers = torch.full((max(1, len(groups)), 2 + self.settings.wrong), -1)
        for at, group in enumerate(groups):
            numbers[at, : len(group)] = torch.tensor(group)
        return {
            "ids": ids, "lengths": lengths, "passage": places[0], "answer": places[1], "has": has,
            "groups": numbers,
        }  # fmt: skip
