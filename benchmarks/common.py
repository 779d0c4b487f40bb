"""What the benchmarks share: the chronicle and its questions, needles, and rows as JSON lines."""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

from esa_cli.evaluation.selftest.run_plan import parse_token_count as tokens
from esa_cli.evaluation.tasks.chronicle_task import contains_answer

__all__ = ["tokens"]

answered = contains_answer
ROOT = Path(__file__).parent.parent
CHRONICLE = ROOT / "examples" / "chronicle.md"
NEEDLES = ROOT / "esa_cli" / "evaluation" / "tasks" / "needles.jsonl"
_SIGNS = str.maketrans(dict.fromkeys(string.punctuation + "“”‘’—–", " "))


def load_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


def append_line(path: str, row: dict[str, Any]) -> None:
    """Appends a row to a file of JSON lines, made with its folder; an empty path writes nothing."""
    if path:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8") as out:
            out.write(json.dumps(row, ensure_ascii=False) + "\n")


def split_bare_words(text: str) -> list[str]:
    """Splits a text at spaces and punctuation into lower-case words without articles."""
    words = text.lower().translate(_SIGNS).split()
    return [word for word in words if word not in ("a", "an", "the")]


def chronicle() -> str:
    return CHRONICLE.read_text("utf-8")


def chronicle_questions() -> list[dict[str, Any]]:
    """Questions with the fact that answers each, and the accepted answers."""
    return load_lines(ROOT / "examples" / "questions.jsonl")


def named_device(name: str) -> tuple[Any, str]:
    """A torch device and what it is called. Ends the program where torch finds no such GPU."""
    import torch

    device = torch.device(name)
    if device.type != "cuda":
        return device, "processor"
    if not torch.cuda.is_available():
        raise SystemExit(
            f"device {name} must be a CUDA GPU, and torch {torch.__version__} finds none; "
            "--device cpu runs the same, slowly"
        )
    return device, torch.cuda.get_device_name(device)


def token_counter(tokenizer: Any) -> Callable[[str], int]:
    """A function that counts the tokens of a text, special ones not added."""
    return lambda text: len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
