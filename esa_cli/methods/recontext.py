"""ReContext: whole sentences of the tokens that retrieval heads attend to, before the question.

Source: "ReContext: Recursive Evidence Replay as an LLM Harness for Long-Context Reasoning", arXiv
2607.02509, and its published code. As published: retrieval heads score, whole sentences of the 8 to
32 best tokens (here 32), placed right before the question, no training. Not as published:
- There the sentences are inserted as text and the whole document stays in view. Here their stored
  rows are attended to at consecutive positions right before the question, and nothing else is: what
  is compared is the choice of sentences.
- There 16 heads, found on question/passage pairs, are averaged over the last tokens of the prompt
  with a decay of 0.75. Here the preset's `score.heads` vote (all heads where it has none): summed
  over heads, the maximum over the tokens of question and prompt.
- There several rounds may each add sentences; here one.
- Sentences end as in `whole_sentences`; there by a trained splitter where one is installed.
"""

from __future__ import annotations

from typing import Any

from esa_cli.methods.consensus import esa_consensus
from esa_cli.methods.paper import ATTENDED
from esa_cli.methods.recipes import Base, recipe


@recipe(
    "recontext",
    about="whole sentences of the retrieval heads' 32 best tokens, as ReContext chooses them",
    source="ReContext: Recursive Evidence Replay as an LLM Harness for Long-Context Reasoning, "
    "arXiv 2607.02509; stored rows in place of replayed text",
    cost=f"F M for a question, 0 for an answer's token, + {ATTENDED}",
)
def recontext(base: Base) -> dict[str, Any]:
    whole = esa_consensus(base)
    score = {key: value for key, value in whole["score"].items() if key != "heads"}
    return {
        **whole,
        "selector": {"name": "sentences", "tokens": 32, "rounds": 2, "answer": "keep"},
        "score": {**score, "contrast": False},
    }
