"""A cross-encoder reranks all windows: its scores are those of transformers, one pair at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from finder_asker import asker as asker
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers import models as pieces
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    PreTrainedTokenizerFast,
)

from esa_cli.documents.document import Document
from esa_cli.errors import ModelError, PresetError
from esa_cli.models.cross_encoder import CrossEncoder
from esa_cli.qa.api import Esa
from esa_cli.qa.finding.finder_choice import locate_and_fetch_reranker
from esa_cli.qa.finding.passage_finder import BY_WORDS, add_token_ranges
from esa_cli.qa.passage_answers import THOROUGH

QUESTION = "Who has the key of the gate?"
KEEPERS = [f"Keeper {at} of the old gate has key number {at * at}. " * 4 for at in range(90)]
TEXT = "\n\n".join(KEEPERS)


def save_cross_encoder(folder: Path, labels: int = 1, **more: int) -> Any:
    """Saves a tiny random BERT that reads bytes, and returns it."""
    torch.manual_seed(0)
    names = ["[PAD]", "[CLS]", "[SEP]", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    own = Tokenizer(pieces.BPE({name: n for n, name in enumerate(names)}, []))
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 1), ("[SEP]", 2)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=own, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]",
        model_max_length=160,
    ).save_pretrained(folder)  # fmt: skip
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(
        vocab_size=len(names), intermediate_size=24, max_position_embeddings=160,
        initializer_range=0.5, num_labels=labels, **sizes, **more,
    )  # fmt: skip
    model = BertForSequenceClassification(config).eval()
    model.save_pretrained(folder)
    return model


def test_scores_are_those_of_single_pairs(tmp_path: Path) -> None:
    model = save_cross_encoder(tmp_path)
    texts = ["", "A key.", "boat " * 90, *(one[: 7 * at] for at, one in enumerate(KEEPERS[:40]))]
    reranker, done = CrossEncoder(tmp_path), list[tuple[int, int]]()
    scores = reranker.score_passages(QUESTION, texts, lambda *at: done.append(at))
    assert done == [(0, 43), (32, 43)]
    for text, score in zip(texts, scores.tolist(), strict=True):
        ids = reranker.tokenizer([QUESTION], [text], return_tensors="pt")
        if ids["input_ids"].shape[1] > 160:  # the passage loses its end, the question nothing
            room = 160 - len(reranker.tokenizer(QUESTION)["input_ids"]) - 1
            ids = reranker.tokenizer([QUESTION], [text[:room]], return_tensors="pt")
        with torch.inference_mode():
            assert score == pytest.approx(float(model(**ids).logits), abs=1e-4)


def test_a_thorough_answer_reads_the_best_of_all_windows(asker: Esa, tmp_path: Path) -> None:
    save_cross_encoder(tmp_path)
    read = asker.ingest(Document("keys.txt", TEXT, "keys.txt", "utf-8", len(TEXT)))
    plain = {one.start for one in asker.ask(QUESTION, [read], evidence=99).evidence}
    asker.preset = asker.preset.alter_answer_settings(reranker=str(tmp_path))
    assert plain == {one.start for one in asker.ask(QUESTION, [read], evidence=99).evidence}
    seen = list[tuple[int, int]]()
    reply = asker.ask(
        QUESTION, [read], evidence=99, thorough=True, progress=lambda *at: seen.append(at)
    )
    finder = asker.search.get_passage_finder(add_token_ranges([read]))
    windows = finder.index.windows
    assert len(windows) > 2 * THOROUGH
    assert (0, len(windows)) in seen
    texts = [TEXT[one.start : one.end] for one in windows]
    scores = CrossEncoder(tmp_path).score_passages(QUESTION, texts).tolist()
    ranked = sorted(zip(scores, windows, strict=True), key=lambda pair: -pair[0])
    best, wanted = list[Any](), THOROUGH - THOROUGH // BY_WORDS
    for _, one in ranked:
        shared = [min(one.end, o.end) - max(one.start, o.start) for o in best]
        sizes = [min(one.end - one.start, o.end - o.start) for o in best]
        if all(a < b / 2 for a, b in zip(shared, sizes, strict=True)):
            best.append(one)
    starts = {one.start for one in reply.evidence}
    assert len(reply.evidence) == THOROUGH
    assert {one.start for one in best[:wanted]} <= starts
    assert starts != plain


def test_what_is_no_cross_encoder_is_refused(tmp_path: Path) -> None:
    save_cross_encoder(tmp_path / "two", labels=2)
    with pytest.raises(ModelError, match="2 scores"):
        CrossEncoder(tmp_path / "two")
    model = save_cross_encoder(tmp_path / "backbone")
    BertModel(model.config).save_pretrained(tmp_path / "backbone")
    with pytest.raises(ModelError, match="has no weights classifier"):
        CrossEncoder(tmp_path / "backbone")
    (tmp_path / "backbone" / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ModelError, match="cannot be loaded"):
        CrossEncoder(tmp_path / "backbone")
    for name in ("", "no-such-name", "random:llama", "default.gguf"):
        with pytest.raises(PresetError, match=r"answer\.reranker"):
            locate_and_fetch_reranker(name)
