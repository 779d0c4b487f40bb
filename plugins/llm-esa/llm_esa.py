"""Passages that esa finds, as fragments of Simon Willison's `llm`.

    llm -f 'esa:book.txt?Who is Ahab?' 'Who is Ahab?'
    llm -f 'esa:?Who is Ahab?' 'Who is Ahab?'

The first `?` is the end of the document's name, a file, a folder or a pattern; without a name the
library is searched. What is behind it is a question, or words. esa runs as a program, so it may be
installed elsewhere than llm, and llm does not import torch.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from typing import Any

import llm

PASSAGES = "8"


@llm.hookimpl
def register_fragment_loaders(register: Any) -> None:
    register("esa", passages)


def passages(argument: str) -> list[llm.Fragment]:
    """The passages of documents that fit a question, best first, each below its file and line.

    Raises:
        ValueError: there is no question, no passage fits, or esa says why it cannot find any.
    """
    document, _, question = argument.partition("?")
    if not question.strip():
        raise ValueError("esa: must be followed by DOCUMENT?QUESTION, as esa:book.txt?Who is Ahab?")
    options = ["--json", "--quiet", "--top", PASSAGES, *([] if document else ["--library"])]
    words = [document, question] if document else [question]
    command = [*_program(), "find", *options, "--", *words]
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("esa: ")]
        raise ValueError(said[-1] if said else f"esa ended with exit code {done.returncode}")
    return [_fragment(one) for one in json.loads(done.stdout)["passages"]]


def _program() -> list[str]:
    """esa of the same environment, else the one that a shell finds."""
    if importlib.util.find_spec("esa_cli"):
        return [sys.executable, "-m", "esa_cli"]
    found = shutil.which("esa")
    if not found:
        raise ValueError("esa is not installed: pip install esa-cli")
    return [found]


def _fragment(passage: dict[str, Any]) -> llm.Fragment:
    page = f", page {passage['page']}" if passage["page"] else ""
    place = f"{passage['document']}{page}, line {passage['line']}"
    return llm.Fragment(f"[{place}]\n{passage['text']}", f"esa:{place}")
