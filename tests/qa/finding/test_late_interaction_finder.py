"""A late interaction model of sentence-transformers: its scores are the package's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_finder import tiny_finder
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers import models as pieces
from torch import Tensor
from transformers import ModernBertConfig, ModernBertModel, PreTrainedTokenizerFast

from esa_cli import models
from esa_cli.documents.document import Document
from esa_cli.errors import ModelError
from esa_cli.qa.api import Esa
from esa_cli.qa.finding import finder as late_interaction
from esa_cli.qa.finding.finder import (
    ReducedKeys,
    compute_window_products,
    make_index_layout,
    pool_window_products,
)
from esa_cli.qa.finding.late_interaction_finder import LateInteractionFinder
from esa_cli.qa.presets.preset import load_preset
from esa_cli.storage.library import Library

TEXT = "The gate opens at nine. Nobody knows why it does. " * 9
DOCUMENT = Document("t", TEXT, "t", "utf-8", len(TEXT))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Tiny random ModernBERT weights, saved by the package; full stops are not scored."""
    package = pytest.importorskip("sentence_transformers", minversion="6")
    torch.manual_seed(0)
    names = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "[Q] ", "[D] "]
    names += sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(pieces.BPE({name: n for n, name in enumerate(names)}, [], unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    ends = [("[CLS]", 1), ("[SEP]", 2)]
    plain.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", unk_token="[UNK]", model_max_length=96,
        additional_special_tokens=["[Q] ", "[D] "],
    ).save_pretrained(tmp_path / "backbone")  # fmt: skip
    config = ModernBertConfig(
        vocab_size=len(names), hidden_size=32, intermediate_size=48, num_hidden_layers=3,
        num_attention_heads=2, max_position_embeddings=96, local_attention=32, pad_token_id=0,
        cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    ModernBertModel(config).save_pretrained(tmp_path / "backbone")
    prompts = {"query": "[Q] ", "document": "[D] "}
    encoder = package.MultiVectorEncoder(str(tmp_path / "backbone"), prompts=prompts)
    encoder[1].linear = torch.nn.Linear(32, 5, bias=False)
    encoder[1].out_features, encoder[2].skiplist_words = 5, ["."]
    encoder.save_pretrained(str(tmp_path / "late"))
    return tmp_path / "late"


def test_scores_are_the_max_sim_of_the_package(folder: Path) -> None:
    finder, questions = LateInteractionFinder(folder), ["When does the gate open?", "Who?"]
    assert (finder.part, finder.context, finder.layout.width) == (64, 8, 6)
    text = finder.tokenise(DOCUMENT)
    keys = finder.encode_tokens(text, 0, 450)
    parts = [finder.encode_tokens(text, at, min(at + 128, 450)) for at in range(0, 450, 128)]
    torch.testing.assert_close(torch.cat(parts), keys, atol=1e-5, rtol=1e-4)
    queries, weights = finder.encode_questions(questions)
    for first in (0, 128):  # the second part has eight tokens of context
        low = max(0, first - 8)
        [rows] = finder.encoder.encode_document([TEXT[low : first + 64]])
        rows = rows[2 + sum(letter != "." for letter in TEXT[low:first]) : -1]
        spoken = [at for at in range(first, first + 64) if TEXT[at] != "."]
        torch.testing.assert_close(keys[spoken, :5], rows, atol=1e-5, rtol=1e-4)
        want = finder.encoder.similarity(finder.encoder.encode_query(questions), [rows])[:, 0]
        bounds = torch.tensor([first]), torch.tensor([first + 64])
        for query, weight, score in zip(queries, weights, want, strict=True):
            for kept in (keys, ReducedKeys.encode(keys, finder.layout)):
                got = compute_window_products(query, kept, *bounds)[0] @ weight
                assert float(got) == pytest.approx(float(score / (weight > 0).sum()), abs=0.02)


def test_its_index_is_beside_those_of_other_finders(folder: Path, tmp_path: Path) -> None:
    tiny_finder(tmp_path / "ours")
    library, read_s = Library(tmp_path / "library"), list[float]()
    loaded: Any = models.load("random:llama", device="cpu", dtype="float32")
    for name in (folder, tmp_path / "ours", folder):
        chosen = load_preset("tiny-random", ["answer.from=text", f"answer.finder={name}"])
        with Esa(loaded, chosen, library=library) as esa:
            book = esa.ingest(DOCUMENT)
            assert esa.find_passages("Who?", [book])
            read_s.append(book.read_s)
    assert (min(read_s[:2]) > 0, read_s[2], len(library.entries())) == (True, 0.0, 2)


@pytest.mark.parametrize("kind", ["modeling.Strange", "sentence_transformers.Pooling"])
def test_foreign_code_and_single_vectors_are_refused(kind: str, folder: Path) -> None:
    own = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([own[0], {**own[1], "type": kind}]))
    with pytest.raises(ModelError, match=kind):
        LateInteractionFinder(folder)


def window_scores(
    queries: Tensor, weights: Tensor, keys: Tensor | ReducedKeys, first: Tensor, last: Tensor
) -> Tensor:
    """Scores (W,) of windows."""
    return compute_window_products(queries, keys, first, last) @ weights


def test_against_a_loop() -> None:
    torch.manual_seed(1)
    queries, keys = torch.randn(5, 4), torch.randn(60, 4)
    queries = torch.nn.functional.normalize(queries, dim=1)
    keys = torch.nn.functional.normalize(keys, dim=1)
    weights = torch.rand(5).softmax(0)
    windows = [(3, 9), (6, 20), (6, 7), (18, 41), (20, 60), (41, 41), (59, 60), (3, 60)]
    first, last = torch.tensor(windows).T
    found = window_scores(queries, weights, keys, first, last)
    for (a, b), score in zip(windows, found.tolist(), strict=True):
        want = -1.0
        if b > a:
            want = sum(
                float(w) * max(float(q @ k) for k in keys[a:b])
                for q, w in zip(queries, weights, strict=True)
            )
        assert abs(score - want) < 1e-5
    none = window_scores(queries, weights, keys[:0], first * 0, last * 0)
    assert none.tolist() == pytest.approx([-float(weights.sum())] * len(windows))


def test_one_window_of_the_whole_text() -> None:
    queries, keys = torch.randn(3, 4), torch.randn(9, 4)
    found = compute_window_products(queries, keys, torch.tensor([0]), torch.tensor([9]))
    torch.testing.assert_close(found, (queries @ keys.T).amax(1)[None], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("windows", [0, 1, 3, 50])
def test_products_around(windows: int) -> None:
    torch.manual_seed(3)
    first = torch.arange(0, 40, 4)
    products = compute_window_products(torch.randn(3, 4), torch.randn(44, 4), first, first + 8)
    found = pool_window_products(products, windows)
    assert found.shape == products.shape
    for at, row in enumerate(found):
        assert torch.equal(row, products[max(0, at - windows) : at + windows + 1].amax(0))
    assert pool_window_products(products[:0], windows).shape == (0, 3)


def in_one_product(
    queries: Tensor, weights: Tensor, keys: Tensor, first: Tensor, last: Tensor
) -> Tensor:
    """The scores of windows with tokens from one product of all keys."""
    products = keys @ queries.T
    best = [products[a:b].amax(0) for a, b in zip(first.tolist(), last.tolist(), strict=True)]
    return torch.stack(best) @ weights


@pytest.mark.parametrize("tile", [1, 7, 64, 4096])
def test_tiles_change_nothing(monkeypatch: pytest.MonkeyPatch, tile: int) -> None:
    monkeypatch.setattr(late_interaction, "TILE", tile)
    torch.manual_seed(2)
    tokens = 900
    queries = torch.nn.functional.normalize(torch.randn(9, 16), dim=1)
    keys = ReducedKeys.encode(
        torch.nn.functional.normalize(torch.randn(tokens, 16), dim=1), make_index_layout(16)
    )
    weights = torch.rand(9).softmax(0)
    # Windows of all lengths, within a tile and over several, that overlap and leave gaps.
    first = torch.randint(5, tokens - 20, (200,)).sort()[0]
    last = (first + torch.randint(1, 150, (200,))).clamp(max=tokens - 3)
    want = in_one_product(queries, weights, keys.decode_keys(0, tokens), first, last)
    found = window_scores(queries, weights, keys, first, last)
    torch.testing.assert_close(found, want, atol=1e-6, rtol=0)
    plain = window_scores(queries, weights, keys.decode_keys(0, tokens), first, last)
    assert torch.equal(plain, found)
