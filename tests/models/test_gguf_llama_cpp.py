"""llama.cpp on the GGUF files that esa converts: an independent reading of the format.

Skipped where the package xllamacpp, which has llama.cpp in it, is not installed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf_writing import ARCHITECTURES, MERGED, TOKENS, write_model
from model_files import own_home
from test_families import family_model
from test_gguf_families import IN_GGUF

from esa_cli import models

xllamacpp: Any = pytest.importorskip("xllamacpp")

SIZES: dict[str, dict[str, Any]] = {
    # those that llama.cpp refuses otherwise
    "cohere2": {"head_dim": 16}
}


def served(path: Path) -> Any:
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.warmup = 256, 1, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    return xllamacpp.Server(params)


def log_probabilities(path: Path, ids: list[int]) -> dict[int, float]:
    """By llama.cpp, of the next token."""
    asked = {"prompt": ids, "n_predict": 1, "temperature": 0, "n_probs": len(TOKENS)}
    # Of half a character it reports nothing; what it reports is without the bias.
    asked |= {"logit_bias": [[TOKENS.index("A"), 1000.0]]}
    (choice,) = served(path).handle_completions(asked)["choices"]
    return {one["id"]: one["logprob"] for one in choice["logprobs"]["content"][0]["top_logprobs"]}


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_a_family(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_home(tmp_path, monkeypatch)
    options = {"vocab_size": len(TOKENS), "hidden_size": 96}
    options |= IN_GGUF.get(kind, {}) | SIZES.get(kind, {})
    path = write_model(tmp_path / "a.gguf", family_model(kind, **options))
    model = models.load(str(path), device="cpu", dtype="float32").model
    ids = torch.randint(3, 200, (1, 40), generator=torch.Generator().manual_seed(9))
    wanted = torch.log_softmax(model(ids).logits[0, -1].float(), -1)
    found = log_probabilities(path, ids[0].tolist())
    assert len(found) == len(TOKENS)
    assert max(abs(wanted[token].item() - one) for token, one in found.items()) < 0.07
    assert wanted.max() - wanted.min() > 2, "all tokens being alike would show nothing"


WORDS = [
    "1984",
    "'s",
    "don't",
    "Ġhe",
    "Ġhello",
    "ĠĠĠ",
    "ĊĊ",
    "...",
    ".Ċ",
    "#if",
    "(a",
    "/b",
    "ĠÃ©t",
]
TEXTS = (
    "In 1984 he don't say hello...\n\n  HELLO he's WE'S   hello",
    "x1984 (a).\r\n été日本 #if _a/b 12345 ²³ !! \t\t a's - !\nx",
)


@pytest.mark.parametrize(
    "pre", ["smollm", "starcoder", "refact", "command-r", "chatglm-bpe", "glm4", "qwen2", "olmo"]
)
def test_text_is_cut_into_as_many_tokens(
    pre: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_home(tmp_path, monkeypatch)
    parts = {word[:end]: None for word in WORDS for end in range(2, len(word) + 1)}
    vocabulary = [*TOKENS[: -len(MERGED)], *parts]
    model = family_model("llama", vocab_size=len(vocabulary), hidden_size=96)
    path = write_model(tmp_path / "a.gguf", model, pre=pre, vocabulary=vocabulary)
    tokenizer = models.load(str(path), device="cpu", dtype="float32").tokenizer
    server = served(path)
    for text in TEXTS:
        found = server.handle_completions({"prompt": text, "n_predict": 1})["usage"]
        assert len(tokenizer(text, add_special_tokens=False).input_ids) == found["prompt_tokens"]
