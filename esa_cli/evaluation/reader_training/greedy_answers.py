"""Greedy answers to many prompts at once, each up to its line end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from esa_cli.qa.reading.passage_prompt import PassagePrompt

MOST = 24
"""Tokens of an answer."""


@torch.no_grad()
def greedy_answers(
    model: Any, prompt: PassagePrompt, prompts: Sequence[Sequence[int]], most: int = MOST
) -> list[str]:
    """The first line of each answer, without white space around it.

    Args:
        prompts: token ids; they are padded at their beginning, which nothing attends to.
    """
    longest = max(len(ids) for ids in prompts)
    padding = torch.tensor([longest - len(ids) for ids in prompts])
    ids = torch.tensor([[0] * (longest - len(one)) + list(one) for one in prompts])
    places = torch.arange(longest + most)
    mask = (places >= padding[:, None]).long().to(model.device)
    positions = (places - padding[:, None]).clamp_min(0).to(model.device)
    cache, answers = None, [list[int]() for _ in prompts]
    texts = [""] * len(prompts)
    ids, first = ids.to(model.device), 0
    for _ in range(most):
        last = first + ids.shape[1]
        out = model(
            input_ids=ids,
            attention_mask=mask[:, :last],
            position_ids=positions[:, first:last],
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache, first = out.past_key_values, last
        ids = out.logits[:, -1].argmax(-1, keepdim=True)
        for row, token in enumerate(ids.flatten().tolist()):
            if "\n" not in texts[row]:
                answers[row].append(token)
                texts[row] = prompt.texts(answers[row])
        if all("\n" in text for text in texts):
            break
    return [text.split("\n")[0].strip() for text in texts]
