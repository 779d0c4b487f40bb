"""Forward passes of plain text through a model without an attached method.

`ModelForward` is the forward pass of transformers; `small_decoder.FusedForward` is a faster one."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from esa_cli.errors import ModelError
from esa_cli.models.files.checkpoint_files import reading
from esa_cli.models.files.families import FAMILIES, family_of
from esa_cli.system.files import replacing
from esa_cli.system.machine import memory_ran_out


@contextmanager
def before_each_layer(model: Any, callback: Callable[[], None]) -> Iterator[None]:
    """Calls `callback` before each decoder layer of each forward pass of a model until the block
    ends; an exception in `callback` ends the pass. Without known layers, each pass makes one call.
    """
    layers = getattr(model.base_model, "layers", [model.base_model])
    handles = [layer.register_forward_pre_hook(lambda *_: callback()) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def call_layer_hooks(layer: nn.Module) -> None:
    """Calls the hooks of `before_each_layer` for a pass that does not run the layer's module."""
    for hook in [*layer._forward_pre_hooks.values()]:
        hook(layer, ())


def share_layer_hooks(model: Any, later_model: Any) -> None:
    """Makes the layers of `later_model` call the hooks of the same layers of `model`."""
    layers = zip(model.base_model.layers, later_model.base_model.layers, strict=True)
    for layer, later in layers:
        later.register_forward_pre_hook(lambda *_, layer=layer: call_layer_hooks(layer))


GROUP = 8
"""The number of sequences, of similar lengths to avoid padding, in a forward call."""


def padded(sequences: Sequence[Sequence[int]]) -> Tensor:
    """Returns the token ids (B, T) of sequences of different lengths, padded with zeros."""
    rows = [torch.tensor(list(ids), dtype=torch.long) for ids in sequences]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


def grouped(items: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yields groups of sequence numbers; each group is processed by one forward call."""
    for at in range(0, len(items), GROUP):
        yield items[at : at + GROUP]


class _LastLayerReached(Exception):
    """An exception that ends a forward pass after the last layer that is needed."""


def hidden_states(model: Any, ids: Tensor, layer_count: int) -> Tensor:
    """Returns the hidden states (B, T, H), float32 and of RMS 1, of token ids (B, T) after the
    first `layer_count` layers of a model. Later layers do not run; gradients are computed if
    enabled."""
    states = list[Tensor]()

    def stop_after_layer(module: nn.Module, inputs: Any, output: Any) -> None:
        states.append(output[0] if isinstance(output, tuple) else output)
        raise _LastLayerReached

    handle = model.base_model.layers[layer_count - 1].register_forward_hook(stop_after_layer)
    try:
        model.base_model(input_ids=ids.to(model.device), use_cache=False)
    except _LastLayerReached:
        pass
    finally:
        handle.remove()
    return normalise_hidden_states(states[0])


def normalise_hidden_states(states: Tensor) -> Tensor:
    """Returns hidden states as float32, each divided by the root mean square of its numbers."""
    return nn.functional.rms_norm(states.float(), states.shape[-1:], eps=1e-6)


KeysValues = tuple[Tensor, Tensor]
"""The keys and the values of a layer, each (B, G, N, D): G key/value heads of dimension D."""


@dataclass(frozen=True)
class KeyValuePast:
    """The KV cache of all layers for B sequences, padded to N tokens each."""

    pairs: Sequence[KeysValues]

    def select_sequences(self, numbers: Sequence[int]) -> KeyValuePast:
        """Returns the KV cache of the sequences with these numbers; a number may be repeated."""
        if len({*numbers}) == 1:
            only, shape = slice(numbers[0], numbers[0] + 1), (len(numbers), -1, -1, -1)
            return KeyValuePast(
                [(k[only].expand(shape), v[only].expand(shape)) for k, v in self.pairs]
            )
        at = torch.tensor([*numbers], device=self.pairs[0][0].device)
        return KeyValuePast([(keys[at], values[at]) for keys, values in self.pairs])

    def cut_to_length(self, length: int) -> KeyValuePast:
        """Returns the KV cache of the first `length` tokens, without the padding of a prompt."""
        return KeyValuePast([(k[:, :, :length], v[:, :, :length]) for k, v in self.pairs])


@dataclass(frozen=True)
class CachePast:
    """A transformers cache with layers of any type, which has the methods of `KeyValuePast`."""

    cache: Any
    device: torch.device

    def select_sequences(self, numbers: Sequence[int]) -> CachePast:
        """Returns the cache of the sequences with these numbers; a number may be repeated."""
        out = copy.copy(self.cache)
        out.layers = [copy.copy(layer) for layer in self.cache.layers]
        for layer in out.layers:  # the same tensors, which can be replaced
            for name, value in vars(layer).items():
                if isinstance(value, dict):
                    setattr(layer, name, dict(value))
        out.reorder_cache(torch.tensor([*numbers], device=self.device))
        return CachePast(out, self.device)

    def cut_to_length(self, length: int) -> CachePast:
        """Crops the cache to the first `length` tokens."""
        if (extra := self.cache.get_seq_length() - length) > 0:
            self.cache.crop(-extra)
        return self


TextPast = KeyValuePast | CachePast


class TextForward(Protocol):
    """The interface of a forward pass of token ids, for one or several (padded) prompts."""

    @property
    def accepts_padding(self) -> bool: ...

    @property
    def device(self) -> torch.device: ...

    def states(self, ids: Tensor, past: Any = None) -> tuple[Tensor, TextPast]:
        """Returns the hidden states (B, T, hidden) of token ids (B, T), as input of `logits`, and
        the KV cache `past` extended by these tokens. The old `past` must not be used again."""

    def logits(self, states: Tensor) -> Tensor:
        """Returns logits (..., vocabulary), float32, of hidden states."""


class ModelForward:
    """The forward pass of a causal language model of transformers; it implements `TextForward`."""

    def __init__(self, model: Any) -> None:
        self._model, body = model, model.base_model
        # Llama 4 names its body otherwise than its class says.
        self._body = model.model if body is model else body
        self.device: torch.device = model.device

    @cached_property
    def accepts_padding(self) -> bool:
        """Whether padded prompts can be continued: every layer stores the keys of all tokens."""
        from transformers.cache_utils import DynamicCache, DynamicLayer

        layers = DynamicCache(config=self._model.config).layers
        return all(type(layer) is DynamicLayer for layer in layers)

    def states(self, ids: Tensor, past: CachePast | None = None) -> tuple[Tensor, CachePast]:
        """Returns the hidden states of token ids, and the cache extended by these tokens."""
        from transformers import DynamicCache

        cache = DynamicCache(config=self._model.config) if past is None else past.cache
        out = self._body(input_ids=ids, past_key_values=cache, use_cache=True)
        return out.last_hidden_state, CachePast(cache, ids.device)

    def logits(self, states: Tensor) -> Tensor:
        """Returns logits, scaled and capped as the model's family does."""
        logits: Tensor = self._model.get_output_embeddings()(states).float()
        config, family = self._model.config, family_of(self._model.config)
        if family.multiply:
            logits = logits * getattr(config, family.multiply)
        if family.divide:
            logits = logits / getattr(config, family.divide)
        if family.cap and (cap := getattr(config, family.cap)) is not None:
            logits = cap * torch.tanh(logits / cap)
        return logits


class PromptBatch:
    """Prompts that a model has processed, given as token ids, and the `logits` (prompts,
    vocabulary), float32, of the token that follows each prompt."""

    def __init__(self, forward: TextForward, prompts: Sequence[Sequence[int]]) -> None:
        self._forward, self._lengths = forward, [len(ids) for ids in prompts]
        logits: list[Tensor] = [torch.empty(0)] * len(prompts)
        order = sorted(range(len(prompts)), key=lambda n: self._lengths[n])
        self._places: dict[int, tuple[TextPast, int]] = {}
        for group in grouped(order) if forward.accepts_padding else [[n] for n in order]:
            batch = padded([prompts[n] for n in group])
            states, past = forward.states(batch.to(forward.device))
            last = torch.tensor([self._lengths[n] - 1 for n in group])
            lines = forward.logits(states[torch.arange(len(group)), last])
            for row, (n, line) in enumerate(zip(group, lines, strict=True)):
                self._places[n], logits[n] = (past, row), line
        self.logits = torch.stack(logits) if logits else torch.empty(0, 0)

    def continuation(self, prompt_index: int) -> Continuation:
        """Returns a `Continuation` of one prompt, to which tokens can be appended."""
        past, row = self._places[prompt_index]
        alone = past.select_sequences([row]).cut_to_length(self._lengths[prompt_index])
        return Continuation(self._forward, alone)


class Continuation:
    """A prompt with alternative continuations of one length; the prompt is continuation 0."""

    def __init__(self, forward: TextForward, past: TextPast) -> None:
        self._forward, self._past = forward, past

    def append(self, parents: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """Returns logits (n, vocabulary) after n tokens; token i extends number `parents[i]`."""
        ids = torch.tensor(list(tokens), device=self._forward.device)[:, None]
        states, self._past = self._forward.states(ids, self._past.select_sequences(parents))
        return self._forward.logits(states[:, -1])


UNFIT = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, RuntimeError,
    TypeError, ValueError,
)  # fmt: skip
"""The errors of a model whose text cannot be continued; `before_each_layer` raises others."""


@torch.inference_mode()
def plain_forward(model: Any) -> ModelForward:
    """Returns the forward pass of a model without an attached method. A model of an unsupported
    family is tested first: a short text in two parts must give the same logits as in one pass.
    Raises ModelError: the logits differ, or are not numbers in the model's number type."""
    forward = ModelForward(model)
    if model.config.model_type in FAMILIES:
        return forward
    ids = (torch.arange(1, 14) * 7 % model.config.vocab_size)[None].to(forward.device)
    try:
        first, past = forward.states(ids[:, :6])
        second, _ = forward.states(ids[:, 6:], past.select_sequences([0]))
        parts = forward.logits(torch.cat((first, second), 1))
        whole = model(input_ids=ids, use_cache=False).logits.float()
        apart = 1e-4 if model.dtype == torch.float32 else 3e-2
        if whole.isfinite().all() and (parts - whole).abs().max() <= apart * whole.abs().max():
            return forward
    except UNFIT as error:
        if memory_ran_out(error):
            raise
    dtype, kind = str(model.dtype).removeprefix("torch."), model.config.model_type
    raise ModelError(
        f"logits of models of type {kind!r} in {dtype} must be numbers, depend on earlier tokens "
        "alone, and be the same with a KV cache",
        "choose another causal language model, or use --dtype float32",
    )


CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
"""The prefix that peft adds to a module's name in the causal language model."""


class LoraAdapter:
    """A LoRA adapter: the matrices A (r, in) and B (out, r) for some linear layers of one model.
    `matrices` maps each layer's name in `model` to the pair (A, B); `scale` is the factor of `B A`,
    alpha / r in the paper. Raises ModelError: the model lacks a layer, or a layer has another size.
    """

    def __init__(
        self, model: nn.Module, matrices: Mapping[str, tuple[Tensor, Tensor]], scale: float
    ) -> None:
        self.matrices, self.scale = dict(matrices), scale
        layers, self._layers = dict(model.named_modules()), dict[str, nn.Linear]()
        for name, (a, b) in self.matrices.items():
            layer, sizes = layers.get(name), (b.shape[0], a.shape[1])
            # A quantised weight is flat: the sizes are the layer's own.
            if not isinstance(layer, nn.Linear) or sizes != (
                layer.out_features, layer.in_features
            ):  # fmt: skip
                raise ModelError(
                    f"the adapter belongs to another model: it has matrices for {name}",
                    "use an adapter that was trained for this model, or --set answer.adapter=null",
                )
            self._layers[name] = layer

    @classmethod
    def new(cls, model: Any, rank: int, alpha: float, seed: int = 0) -> LoraAdapter:
        """Creates an untrained adapter, without effect, for all linear layers but the output."""
        generator = torch.Generator().manual_seed(seed)
        matrices = {}
        output = model.get_output_embeddings()
        for name, layer in model.named_modules():
            if isinstance(layer, nn.Linear) and layer is not output:
                a = torch.rand(rank, layer.in_features, generator=generator) * 2 - 1
                first = nn.Parameter(a / math.sqrt(layer.in_features))
                matrices[name] = first, nn.Parameter(torch.zeros(layer.out_features, rank))
        return cls(model, matrices, alpha / rank)

    @classmethod
    def load(cls, folder: Path, model: nn.Module) -> LoraAdapter:
        """Loads an adapter from its folder. Raises ModelError: the adapter is missing, damaged, of
        an unsupported kind (bias, DoRA, rank patterns) or of another model, or has numbers that are
        not finite."""
        with reading(f"the adapter {folder}", "use --set answer.adapter=null"):
            config = json.loads((folder / CONFIG).read_text("utf-8"))
            tensors = load_file(folder / WEIGHTS)
            others = ("use_dora", "rank_pattern", "alpha_pattern")
            plain = config["peft_type"] == "LORA" and config.get("bias", "none") == "none"
            if not plain or any(config.get(name) for name in others):
                raise ValueError(
                    "only plain LoRA is supported, without bias, DoRA or rank patterns"
                )
            rank, alpha = int(config["r"]), float(config["lora_alpha"])
            scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
            matrices = {}
            for name in [one for one in tensors if one.endswith(".lora_A.weight")]:
                a, b = tensors[name], tensors[name.replace("lora_A", "lora_B")]
                if a.dim() != 2 or b.dim() != 2 or (a.shape[0], b.shape[1]) != (rank, rank):
                    raise ValueError(f"{name} must have the rank r = {rank}")
                if not (a.isfinite().all() and (b.float() * scale).isfinite().all()):
                    raise ValueError(f"{name} must have finite numbers")
                matrices[name.removeprefix(PREFIX).removesuffix(".lora_A.weight")] = a, b
            if 2 * len(matrices) != len(tensors):
                raise ValueError("the adapter must change linear layers only")
        return cls(model, matrices, scale)

    @property
    def rank(self) -> int:
        """The rank r of the adapter, which is the smaller size of its matrices."""
        return int(next(iter(self.matrices.values()))[0].shape[0])

    def save(self, folder: Path, base_model: str) -> None:
        """Saves the adapter in peft's format; `base_model` is the name of its model."""
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base_model,
            "r": self.rank, "lora_alpha": self.scale * self.rank, "bias": "none", "use_dora": False,
            "target_modules": sorted({name.rsplit(".", 1)[-1] for name in self.matrices}),
        }  # fmt: skip
        tensors = {
            f"{PREFIX}{name}.lora_{half}.weight": matrix.detach().to(torch.bfloat16).contiguous()
            for name, pair in self.matrices.items()
            for half, matrix in zip("AB", pair, strict=True)
        }
        with replacing(folder / WEIGHTS) as path:
            save_file(tensors, path, metadata={"format": "pt"})
        with replacing(folder / CONFIG) as path:
            path.write_text(json.dumps(config, indent=1) + "\n", "utf-8")

    def parameters(self) -> list[Tensor]:
        """Returns all matrices of the adapter, for training."""
        return [matrix for pair in self.matrices.values() for matrix in pair]

    @contextmanager
    def active(self) -> Iterator[None]:
        """Adds the adapter to the outputs of the model's linear layers until the block ends."""

        def make_hook(name: str) -> Any:
            def add_output(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
                (a, b), x = self.matrices[name], inputs[0]
                return output + (x @ a.to(x).T) @ (b.to(x) * self.scale).T

            return add_output

        with ExitStack() as stack:
            for name, layer in self._layers.items():
                stack.callback(layer.register_forward_hook(make_hook(name)).remove)
            yield

    def lora_products(self) -> dict[nn.Module, tuple[Tensor, Tensor]]:
        """Returns A and `scale * B` for each linear layer, to whose weight B A is added."""
        return {
            self._layers[name]: (a.detach(), b.detach() * self.scale)
            for name, (a, b) in self.matrices.items()
        }

    def to(self, target: Tensor) -> LoraAdapter:
        """Moves the adapter's matrices to the device and number type of a tensor."""
        for name, (a, b) in self.matrices.items():
            self.matrices[name] = a.to(target), b.to(target)
        return self
