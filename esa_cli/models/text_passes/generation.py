"""Generates an answer by transformers' `generate`, and decodes its tokens as they arrive."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from esa_cli.models.files.quiet_transformers import quiet_transformers


class AnswerStreamer:
    """Decodes the tokens of an answer as they arrive, and passes only complete characters on.

    Attributes:
        text, ids: the text of the answer so far, and its token ids.
        first: when the first token arrived, as `time.perf_counter` says, or None before.
        cut: whether the answer reached its maximum length, as `generate` says at its end."""

    def __init__(self, tokenizer: Any, on_text: Callable[[str], None] | None) -> None:
        self.tokenizer, self.on_text = tokenizer, on_text
        self.text, self.ids, self.cut = "", list[int](), False
        self.first: float | None = None
        self._has_prompt = False

    def put(self, token_ids: torch.Tensor) -> None:
        """Receives token ids from `model.generate`, first the prompt, then each new token."""
        if not self._has_prompt:
            self._has_prompt = True
            return
        self.first = self.first or time.perf_counter()
        self.ids.extend(token_ids.flatten().tolist())
        # A character may be several byte tokens: the last of them completes it.
        self._emit_new_text("\ufffd")

    def end(self) -> None:
        """Emits the rest of the answer's text when `model.generate` has ended."""
        self._emit_new_text("")

    def _emit_new_text(self, omitted_characters: str) -> None:
        """Passes the answer's new text to `on_text`, except for `omitted_characters` at its end."""
        text = str(self.tokenizer.decode(self.ids, skip_special_tokens=True))
        text = text.rstrip(omitted_characters)
        new, self.text = text[len(self.text) :], text
        if new and self.on_text:
            self.on_text(new)


def generate(
    model: Any, prompt_ids: Sequence[int], cache: Any, streamer: AnswerStreamer, *,
    max_new_tokens: int, temperature: float = 0.0, top_p: float = 1.0, seed: int | None = None,
) -> None:  # fmt: skip
    """Generates a transformers model's answer to a prompt, which the `streamer` receives.

    The model's generation settings are ignored, apart from special token ids, since a penalty for
    repetition, for example, would penalise answers that quote the document in the prompt.

    Args:
        prompt_ids: the token ids of the whole prompt, cached or not.
        temperature: 0 for greedy decoding; otherwise tokens are sampled.
        top_p: the probability of the nucleus from which tokens are sampled.
        seed: the seed of the sampling; torch's global generators are restored afterwards."""
    from transformers import GenerationConfig

    config: Any = GenerationConfig
    settings: dict[str, Any] = {"do_sample": temperature > 0, "max_new_tokens": max_new_tokens}
    if temperature > 0:
        settings |= {"temperature": temperature, "top_p": top_p, "top_k": 0}
    prompt, before = torch.tensor([list(prompt_ids)], device=model.device), model.generation_config
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    special = {name: getattr(before, name, None) for name in names}
    # transformers would warn that the prompt is longer than the model's window, as it may be here.
    with quiet_transformers(), ExitStack() as stack:
        if seed is not None:
            devices = [] if model.device.type == "cpu" else [model.device]
            stack.enter_context(torch.random.fork_rng(devices, device_type=model.device.type))
            torch.manual_seed(seed)
        stack.callback(setattr, model, "generation_config", before)
        model.generation_config = config(**special)
        model.generate(
            prompt,
            generation_config=config(use_cache=True, **settings, **special),
            attention_mask=torch.ones_like(prompt),
            past_key_values=cache,
            streamer=streamer,
        )
    ends = special["eos_token_id"]
    ends = ends if isinstance(ends, (list, tuple)) else [ends]
    streamer.cut = len(streamer.ids) >= max_new_tokens and streamer.ids[-1] not in ends
