"""Compares a training step of the reader with matrix products for attention and with PyTorch's
fused attention, on this machine's processor.

    python benchmarks/training/training_step.py
"""

from __future__ import annotations

import argparse
import random
import time
from statistics import median

from adapter_files import new_adapter
from answer_logits import answer_losses
from example_batches import TokenExample
from training_steps import fixed_weights, make_trainable

from esa_cli.models import load
from esa_cli.qa.presets.preset import load_preset

ANSWER = 6
"""Tokens of an answer."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=180)
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()

    model = load(load_preset().model, device="cpu", dtype="bfloat16").model
    rng = random.Random(1)
    batch = [
        TokenExample(_ids(rng, args.tokens - ANSWER), _ids(rng, ANSWER), "pair")
        for _ in range(args.examples)
    ]
    adapter = new_adapter(model, 16, 32)
    make_trainable(adapter, model)
    seconds = {}
    with fixed_weights(model), adapter.apply():
        for name in ("eager", "sdpa"):
            model.set_attn_implementation(name)
            times = []
            for _ in range(args.steps + 1):
                started = time.monotonic()
                answer_losses(model, batch)[0].mean().backward()
                times.append(time.monotonic() - started)
            seconds[name] = median(times[1:])
            print(f"{name}: {seconds[name]:.2f} s a step")
    print(f"sdpa takes {seconds['sdpa'] / seconds['eager']:.2f} times as long as eager")


def _ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(100, 40_000) for _ in range(count)]


if __name__ == "__main__":
    main()
