"""Fits the vector by which a reader sees that a question asks for more than a quotation.

    python benchmarks/training/fit_requests.py benchmarks/training/pairs texts/ --reader reader/

The pairs of style `request`, and 1.6 times as many others of their language, are read with their
passages. A logistic regression of the states of the prompts' last tokens is written into the
reader's head; a reader that goes on to learn needs it anew. The table has pairs of texts that a fit
on the other texts has not seen.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import NamedTuple

import torch
from question_pairs import ENGLISH, TrainingText, read_training_texts
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from esa_cli import models
from esa_cli.qa.presets.preset import HEAD, load_preset
from esa_cli.qa.reading.passage_reader import PassageReader
from esa_cli.system.files import replace_atomically

MOST, OTHERS = 250, 1.6
"""The most requests of a language (English: twice as many), and the number of others for each."""
CHARACTERS = 700
"""The characters of a passage that are read."""
PENALTY, FOLDS = 1e-3, 5
THRESHOLDS = (0.5, 0.7, 0.8, 0.9, 0.95)


class Question(NamedTuple):
    """A question with its passage, the text that it is about, and whether it is a request."""

    name: str
    language: str
    question: str
    passage: str
    is_request: bool


def draw_questions(texts: list[TrainingText]) -> list[Question]:
    """The questions to fit, in random order."""
    draw, out = random.Random(1), list[Question]()
    for language in dict.fromkeys(text.language for text in texts):
        every = [
            Question(
                text.name, language, pair.question,
                text.text[slice(*pair.passage)][:CHARACTERS], pair.style == "request",
            )
            for text in texts if text.language == language
            for pair in text.pairs
        ]  # fmt: skip
        draw.shuffle(every)
        requests = [one for one in every if one.is_request][: MOST * (1 + (language == ENGLISH))]
        others = [one for one in every if not one.is_request]
        out += requests + others[: int(OTHERS * len(requests))]
    draw.shuffle(out)
    return out


def fit(states: Tensor, is_request: Tensor) -> Tensor:
    """The bias and the weights (1 + H,) of a logistic regression."""
    weights = torch.zeros(states.shape[1] + 1, requires_grad=True)
    optimiser = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        odds = states @ weights[1:] + weights[0]
        loss = binary_cross_entropy_with_logits(odds, is_request)
        loss = loss + PENALTY * weights[1:].square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    return weights.detach()


def print_table(questions: list[Question], states: Tensor, is_request: Tensor) -> None:
    names = sorted({one.name for one in questions})
    folds = torch.tensor([names.index(one.name) % FOLDS for one in questions])
    odds = torch.zeros(len(questions))
    for fold in range(FOLDS):
        weights = fit(states[folds != fold], is_request[folds != fold])
        odds[folds == fold] = states[folds == fold] @ weights[1:] + weights[0]
    print("| | " + " | ".join(f"{one:g}" for one in THRESHOLDS) + " |")
    print("|" + "-|" * (len(THRESHOLDS) + 1))
    is_english = torch.tensor([one.language == ENGLISH for one in questions])
    for name, group in ((ENGLISH, is_english), ("other languages", ~is_english)):
        for kind, value in (("requests", 1), ("others", 0)):
            probabilities = odds[group & (is_request == value)].sigmoid()
            shares = [f"{(probabilities >= one).float().mean():.1%}" for one in THRESHOLDS]
            print(f"| {name}: {len(probabilities)} {kind} | " + " | ".join(shares) + " |")


@torch.inference_mode()
def read_questions(folder: Path, questions: list[Question]) -> Tensor:
    """The states (n, H) of the last tokens of n questions' prompts."""
    preset = load_preset("default")
    loaded = models.load(preset.model)
    template = preset.answer.prompt
    reader = PassageReader.load(folder, loaded.text_model, loaded.tokenizer, template)
    prompts = [reader.encode_prompt(one.question, one.passage).ids for one in questions]
    states = torch.zeros(len(prompts), loaded.text_model.config.hidden_size)
    for group, group_states in reader.iterate_states(prompts):
        for n, rows in zip(group, group_states, strict=True):
            states[n] = rows[len(prompts[n]) - 1]
    return states


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("pairs", type=Path, help="the folder of questions: NAME.jsonl")
    parser.add_argument("texts", type=Path, help="the folder of their texts: NAME.*")
    parser.add_argument("--reader", type=Path, required=True, help="the reader's folder")
    options = parser.parse_args()
    questions = draw_questions(read_training_texts(options.pairs, options.texts))
    states = read_questions(options.reader, questions).clone()
    is_request = torch.tensor([float(one.is_request) for one in questions])
    print_table(questions, states, is_request)
    weights = fit(states, is_request)
    head = load_file(options.reader / HEAD) | {"request": weights[1:], "request_bias": weights[:1]}
    with replace_atomically(options.reader / HEAD) as path:
        save_file({name: one.contiguous() for name, one in head.items()}, path)


if __name__ == "__main__":
    main()
