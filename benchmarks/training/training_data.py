"""Texts and questions as tokens, as a finder and a reader are trained on them.

A finder reads a text as it is, and a reader with one space in place of each run of white space, so
that each text has its tokens in both forms. A cache file keeps the tokens for the next training.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import swapped_questions
import torch
from numpy.typing import NDArray
from question_pairs import AnswerPair, Span, TrainingText
from swapped_questions import frequent_names, swapped_question
from torch import Tensor

from esa_cli.evaluation.tasks.task_sample import StableRandom
from esa_cli.models.tokenization.tokenizer import tokenise_text
from esa_cli.qa.finding.finder import PROMPT
from esa_cli.qa.finding.passage_finder import find_token_bounds
from esa_cli.qa.finding.words import WINDOW_WORDS, cut_sentence_windows, find_sentence_spans
from esa_cli.qa.presets.preset import PROMPT as READER_PROMPT
from esa_cli.qa.reading.passage_reader import collapse_spaces
from esa_cli.system.files import convert_writing_errors, replace_atomically
from esa_cli.system.text import count_words_of_text, digest_text

BEFORE_PASSAGE, AFTER_PASSAGE = READER_PROMPT.split(" {passage}")
"""The parts of the prompt around a passage, whose first token has the space."""
KINDS = ("plain", "reworded", "absent")
"""The kinds of pairs; `absent` are all without an answer."""
ABSENT = KINDS.index("absent")
SWAPS = 3
"""The most swapped questions of a pair."""

Integers = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class TextTokens:
    """A text's token `ids` (N,), the tokens [first, last) of its `windows` (W, 2), which overlap,
    and of its `sentences` (S, 2), and how many `words` (S,) each sentence has."""

    ids: Integers
    windows: Integers
    sentences: Integers
    words: Integers


@dataclass(frozen=True)
class TokenLists:
    """Lists of token ids one after the other, `values` (n,); list i ends at `ends[i + 1]`."""

    values: Integers
    ends: Integers

    @classmethod
    def join(cls, lists: Sequence[Sequence[int]]) -> TokenLists:
        values = np.array([one for ids in lists for one in ids], dtype=np.int32)
        return cls(values, np.cumsum([0, *map(len, lists)]))

    def __getitem__(self, index: int) -> Integers:
        return self.values[self.ends[index] : self.ends[index + 1]]


@dataclass(frozen=True)
class Pairs:
    """Questions with their places: P pairs with the tokens [first, last) of answer and passage in
    both forms of the text.

    Args:
        text: (P,), the number of the pair's text. kind: (P,), its place in `KINDS`.
        answers, passages: (P, 2), in the text as it is; `answers` of absent ones are the passages.
        line_answers, line_passages: (P, 2), in the text with single spaces.
        swap_ends: (P + 1,); pair p has the swapped questions [swap_ends[p], swap_ends[p + 1]).
    """

    text: Integers
    kind: Integers
    answers: Integers
    passages: Integers
    line_answers: Integers
    line_passages: Integers
    swap_ends: Integers


@dataclass(frozen=True)
class TrainingData:
    """Texts as they are and as `lines` with single spaces, their pairs, and prompts by name:
    `finder` and `reader` with the questions, each also `_lower`, and the reader's `swapped`."""

    texts: list[TextTokens]
    lines: list[TextTokens]
    pairs: Pairs
    prompts: dict[str, TokenLists]

    def to_arrays(self) -> dict[str, Integers]:
        """Returns all arrays by name, which `from_arrays` takes."""
        parts: dict[str, Any] = {"pairs": self.pairs}
        parts |= {f"prompts.{name}": one for name, one in self.prompts.items()}
        for name, form in (("texts", self.texts), ("lines", self.lines)):
            parts |= {f"{name}.{at}": one for at, one in enumerate(form)}
        return {
            f"{name}.{field.name}": getattr(part, field.name)
            for name, part in parts.items()
            for field in fields(part)
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Integers]) -> TrainingData:
        def make(kind: Any, name: str) -> Any:
            return kind(*(arrays[f"{name}.{field.name}"] for field in fields(kind)))

        names = {name.rpartition(".")[0]: None for name in arrays}
        count = sum(name.startswith("texts.") for name in names)
        texts, lines = (
            [make(TextTokens, f"{form}.{at}") for at in range(count)] for form in ("texts", "lines")
        )
        prompts = {
            name.removeprefix("prompts."): make(TokenLists, name)
            for name in names
            if name.startswith("prompts.")
        }
        return cls(texts, lines, make(Pairs, "pairs"), prompts)


def load_training_data(
    texts: Sequence[TrainingText], tokenizer: Any, model: str, cache: Path | None = None
) -> TrainingData:
    """Returns the texts and pairs as tokens, from the cache file if it has them.

    Args:
        tokenizer: of the model whose reference is `model`.

    Raises EsaError: the cache file cannot be written.
    """
    facts = [model, PROMPT, READER_PROMPT]
    facts += [Path(file).read_text("utf-8") for file in (__file__, swapped_questions.__file__)]
    digest = digest_text("\n".join([*facts, *(text.digest for text in texts)]))
    if cache is not None and cache.is_file():
        # A damaged file is written anew.
        with suppress(OSError, ValueError, KeyError, BadZipFile), np.load(cache) as file:
            if str(file["digest"]) == digest:
                return TrainingData.from_arrays({n: file[n] for n in file.files if n != "digest"})
    data = tokenise_training_texts(texts, tokenizer)
    if cache is not None:
        with (
            convert_writing_errors(cache, "free some space", "name another --cache"),
            replace_atomically(cache) as path,
            path.open("wb") as out,
        ):
            np.savez(out, allow_pickle=False, digest=np.array(digest), **data.to_arrays())
    return data


def tokenise_training_texts(texts: Sequence[TrainingText], tokenizer: Any) -> TrainingData:
    """Tokenises the texts and their questions, with a line about each text on standard error."""
    forms: tuple[list[TextTokens], list[TextTokens]] = ([], [])
    columns: list[list[Integers]] = [[], [], [], []]
    swaps: list[list[str]] = []
    for number, text in enumerate(texts):
        line, places = collapse_with_places(text.text)
        spans = cut_windows(text.text)
        answers = [pair.answer or pair.passage for pair in text.pairs]
        groups = spans.windows, spans.sentences, answers, [pair.passage for pair in text.pairs]
        line_groups = [move_spans(group, places) for group in groups]
        for form, (content, every) in enumerate(((text.text, groups), (line, line_groups))):
            ids, offsets = tokenise_text(tokenizer, content)
            tokens = np.array(ids)
            tokens = tokens.astype(np.min_scalar_type(int(tokens.max())))
            windows, sentences, *pairs_of_text = (locate_tokens(offsets, one) for one in every)
            forms[form].append(TextTokens(tokens, windows, sentences, np.array(spans.words)))
            columns[2 * form].append(pairs_of_text[0])
            columns[2 * form + 1].append(pairs_of_text[1])
        swaps += swap_questions(text)
        print(f"{number + 1} of {len(texts)} texts: {text.name}", file=sys.stderr, flush=True)
    pairs = [pair for text in texts for pair in text.pairs]
    table = Pairs(
        text=np.repeat(np.arange(len(texts)), [len(text.pairs) for text in texts]),
        kind=np.array([KINDS.index(pair.kind) if pair.answer else ABSENT for pair in pairs]),
        answers=np.concatenate(columns[0]),
        passages=np.concatenate(columns[1]),
        line_answers=np.concatenate(columns[2]),
        line_passages=np.concatenate(columns[3]),
        swap_ends=np.cumsum([0, *map(len, swaps)]),
    )
    prompts = encode_prompts([pair.question for pair in pairs], tokenizer)
    prompts["swapped"] = _encode(BEFORE_PASSAGE, [one for few in swaps for one in few], tokenizer)
    return TrainingData(*forms, table, prompts)


class TextSpans(NamedTuple):
    """The characters of a text's windows and of its sentences, and the words of each sentence."""

    windows: list[Span]
    sentences: list[Span]
    words: list[int]


def cut_windows(text: str) -> TextSpans:
    """Cuts a text into sentences and into the windows that are ranked."""
    sentences = find_sentence_spans(text)
    words = [count_words_of_text(text[start:end]) for start, end in sentences]
    windows = cut_sentence_windows(sentences, words, WINDOW_WORDS)
    return TextSpans([(one.start, one.end) for one in windows], sentences, words)


def encode_prompts(questions: Sequence[str], tokenizer: Any) -> dict[str, TokenLists]:
    """Returns the prompts of a finder, and of a reader up to its passage, with the questions as
    they are and in lower case."""
    lower = [write_like_a_search(question) for question in questions]
    return {
        "finder": _encode(PROMPT, questions, tokenizer),
        "finder_lower": _encode(PROMPT, lower, tokenizer),
        "reader": _encode(BEFORE_PASSAGE, [collapse_spaces(q) for q in questions], tokenizer),
        "reader_lower": _encode(BEFORE_PASSAGE, lower, tokenizer),
    }


def encode_texts(texts: Sequence[str], tokenizer: Any) -> list[list[int]]:
    """Returns the token ids of each text."""
    if not texts:
        return []
    out = tokenizer(list(texts), add_special_tokens=False, split_special_tokens=True, verbose=False)
    return list(out["input_ids"])


def _encode(prompt: str, questions: Sequence[str], tokenizer: Any) -> TokenLists:
    texts = [prompt.replace("{question}", question) for question in questions]
    return TokenLists.join(encode_texts(texts, tokenizer))


def write_like_a_search(question: str) -> str:
    """Returns a question in lower case without apostrophes and question mark."""
    return question.lower().rstrip("?").replace("'", "").strip()


def swap_questions(text: TrainingText) -> Iterator[list[str]]:
    """Yields each pair's questions about another name, number or word than those of its passage."""
    start = min(pair.passage[0] for pair in text.pairs)
    end = max(pair.passage[1] for pair in text.pairs)
    # What is outside may be a licence.
    names = frequent_names(text.text[start:end])
    for pair in text.pairs:
        yield _swap_question(text, pair, names) if pair.answer else []


def _swap_question(text: TrainingText, pair: AnswerPair, names: Sequence[str]) -> list[str]:
    rng, passage = StableRandom("swap", pair.id), collapse_spaces(text.text[slice(*pair.passage)])
    tries = (swapped_question(pair.question, passage, names, rng) for _ in range(SWAPS + 1))
    different = dict.fromkeys(one for one in tries if one)
    return [collapse_spaces(one) for one in different][:SWAPS]


def collapse_with_places(text: str) -> tuple[str, Integers]:
    """Returns the text with single spaces, and where each of its n characters is there, (n,)."""
    solid = np.array([not one.isspace() for one in text])
    first = solid & ~np.concatenate(([False], solid[:-1]))
    before = np.cumsum(solid) - solid
    return collapse_spaces(text), before + np.maximum(np.cumsum(first) - 1, 0)


def move_spans(spans: Sequence[Span], place: Integers) -> list[Span]:
    """Returns where spans of characters are in the text with single spaces."""
    return [(int(place[start]), int(place[end - 1]) + 1) for start, end in spans]


def locate_tokens(offsets: Integers, spans: Sequence[Span]) -> Integers:
    """Returns the tokens [first, last) of spans of characters, (n, 2)."""
    places = torch.tensor(spans).reshape(-1, 2)
    first, last = find_token_bounds(torch.from_numpy(offsets), places)
    return torch.stack((first, last), 1).numpy().astype(np.int32)


def pad_lists(lists: Sequence[Integers], rows: int, width: int) -> tuple[Tensor, Tensor]:
    """Returns lists of token ids as a tensor (rows, width), padded with zeros and with empty rows,
    and their lengths (rows,)."""
    ids, lengths = np.zeros((rows, width), dtype=np.int64), np.zeros(rows, dtype=np.int64)
    for row, one in enumerate(lists):
        ids[row, : len(one)], lengths[row] = one, len(one)
    return torch.from_numpy(ids), torch.from_numpy(lengths)
