"""ESA on a transformers model of your own: attach it, prefill once, and call stock `generate`.

    python examples/use_as_library.py book.txt "Who is Ahab?" "Where does he sail?"
    python examples/use_as_library.py note.md "When?" --preset tiny-random      # needs no network

The lines that matter are numbered. `Session` (see ask_book.py) needs fewer and does more: it marks
the question's own words for the selector, and runs the survey pass where the preset has one.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from transformers import TextStreamer

from esa_cli import attach, load_preset
from esa_cli.attention.window import Phase, QueryState
from esa_cli.models.loading.load import load
from esa_cli.qa.answering.prompt import PromptEncoder
from esa_cli.qa.presets.resolved_preset import resolve_preset

READ_AT_ONCE = 1024
"""Tokens in one forward call; it bounds the memory for activations. One call for all works too."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="ESA with stock model.generate.")
    parser.add_argument("document", type=Path)
    parser.add_argument("questions", nargs="+")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--temperature", type=float, default=0.0, help="above 0: sample")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    given = arguments()
    preset = load_preset(given.preset)
    loaded = load(preset.model)
    model, tokenizer = loaded.model, loaded.tokenizer
    # The chat template around the document and around each question.
    prompt = PromptEncoder(tokenizer, preset.prompt)
    document = torch.tensor([prompt.encode_document(given.document.read_text("utf-8"))]).to(
        model.device
    )
    sampling: dict[str, Any] = {"do_sample": False}
    if given.temperature > 0:
        torch.manual_seed(given.seed)
        sampling = {"do_sample": True, "temperature": given.temperature, "top_k": 0}

    with torch.inference_mode(), attach(model, resolve_preset(preset).method) as attachment:  # 1
        cache = attachment.new_cache()  # 2
        cache.begin_query(QueryState(Phase.PREFILL))
        for piece in document.split(READ_AT_ONCE, dim=1):
            model.base_model(piece, past_key_values=cache)  # 3: prefill needs no logits
        for question in given.questions:
            cache.begin_query(QueryState(Phase.QUESTION))
            asked = torch.tensor([prompt.encode_question(question)]).to(model.device)
            ids = torch.cat((document, asked), dim=1)
            print(f"> {question}")
            model.generate(  # 4
                ids,
                attention_mask=torch.ones_like(ids),
                past_key_values=cache,
                max_new_tokens=given.max_new_tokens,
                streamer=TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True),
                **sampling,
            )
            cache.truncate(document.shape[1])  # 5: the question goes, the document stays
    # Here the model is again what it was before.


if __name__ == "__main__":
    main()
