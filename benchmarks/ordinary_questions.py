"""Forty questions as ordinary users meet them, about ordinary texts, asked of the command itself.

`ordinary_questions/questions.jsonl` has five questions of each of eight classes: files that change
in the library, words written otherwise, names that the text lacks, conversations, answers with
signs, lists and counts, the whole library, and texts and folders with odd spots. Their texts are in
`ordinary_questions/texts`. Each question is asked in a folder and a library of its own, by
`python -m esa_cli`, so any version on PYTHONPATH can be measured:

    PYTHONPATH=CHECKOUT python benchmarks/ordinary_questions.py --out rows.jsonl

A passage is right when one of the first three contains the labelled words; with `places` or
`listed` (collect, count, find --files, MCP) when three quarters of the places, or just the listed
files, are given. Words of `never` in any passage or answer make both wrong. An answer is right when
it contains an accepted one; of `find` the first passage is the answer, of places all of them
without others. Refused is what was found not to be in the documents, and what gave no answer.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unicodedata
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common import append_line, load_lines

QUESTIONS = Path(__file__).with_suffix("") / "questions.jsonl"
TEXTS = QUESTIONS.parent / "texts"
ESA = [sys.executable, "-m", "esa_cli"]
SPACES = 150_000
JsonObject = dict[str, Any]


def plain(text: str) -> str:
    """The text in NFKC and lower case, each run of white space as one space."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def has(text: str, words: str) -> bool:
    """Whether a text contains words, not within a longer number or Latin word."""
    edge = "[0-9A-Za-z]"
    return re.search(f"(?<!{edge}){re.escape(plain(words))}(?!{edge})", plain(text)) is not None


def lay_out(question: JsonObject, folder: Path) -> None:
    """Copies the question's texts into a folder, each to its path below `texts`."""
    for pattern in question["files"]:
        for source in sorted(TEXTS.glob(pattern)):
            target = folder / source.relative_to(TEXTS)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def change(step: JsonObject, folder: Path) -> None:
    """Changes files of a folder as a step says."""
    match step:
        case {"copy": [source, target]}:
            shutil.copyfile(TEXTS / source, folder / target)
        case {"remove": name}:
            (folder / name).unlink()
        case {"write": [name, text]}:
            (folder / name).write_text(text, "utf-8")
        case {"replace": [name, former, present]}:
            text = (folder / name).read_text("utf-8")
            assert text.count(former) == 1, f"{name} has not once {former!r}"
            present = present.replace("{spaces}", " " * SPACES)
            (folder / name).write_text(text.replace(former, present), "utf-8")
        case {"sheets": [name, count]}:
            for number in range(1, count + 1):
                text = f"Collection sheet {number}\n\nMill Row, houses {number} to {number + 8}: "
                sheet = folder / name / f"sheet-{number:03}.txt"
                sheet.write_text(f"{text}{7 + number % 31} envelopes given out.\n", "utf-8")
        case _:
            raise ValueError(f"no such step: {step}")


class Esa:
    """The command in one folder with a library of its own; nothing may take longer than `limit`."""

    def __init__(self, folder: Path, limit: float) -> None:
        self.folder, self.limit = folder, limit
        self.environment = {**os.environ, "ESA_LIBRARY": str(folder.parent / "library")}

    def run(self, *arguments: str) -> tuple[int, str]:
        """Exit code and standard output. Raises RuntimeError on a failure, or after the limit."""
        try:
            done = subprocess.run(
                [*ESA, *arguments], cwd=self.folder, env=self.environment, timeout=self.limit,
                capture_output=True, text=True, encoding="utf-8", check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"took longer than {self.limit:.0f} s") from error
        fine = {"ingest": (0, 7), "ask": (0,)}.get(arguments[0], (0, 1))
        if done.returncode not in fine:
            raise RuntimeError(f"exit code {done.returncode}: {done.stderr.strip()[-300:]}")
        return done.returncode, done.stdout

    def command(self, question: JsonObject) -> JsonObject:
        """The object that `ask`, `find` or `collect` prints, with its exit code."""
        verb = ["collect", "--count"] if question["how"] == "count" else [question["how"]]
        code, out = self.run(*verb, *question["arguments"], question["question"], "--json")
        return {**(json.loads(out) if out.strip() else {}), "code": code}

    @contextmanager
    def process(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A command that goes on, ended after the block or when it takes too long."""
        out = subprocess.PIPE if arguments[0] == "mcp" else subprocess.DEVNULL
        with subprocess.Popen(
            [*ESA, *arguments], cwd=self.folder, env=self.environment, text=True, encoding="utf-8",
            stdin=subprocess.PIPE, stdout=out, stderr=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            timer = threading.Timer(self.limit, process.kill)
            timer.start()
            try:
                yield process
            finally:
                timer.cancel()
                process.kill()

    def server(self, question: JsonObject) -> JsonObject:
        """The message with which `esa serve` answers the question's messages.

        Raises RuntimeError. Where the server takes no question without documents, all that it
        lists are named, as by a reader who ticks them all.
        """
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        url = f"http://127.0.0.1:{port}"

        def fetch(path: str, body: JsonObject | None = None) -> JsonObject:
            data = json.dumps(body).encode() if body else None
            request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=self.limit) as reply:
                return dict(json.load(reply))

        with self.process("serve", *question["arguments"], "--port", str(port)) as process:
            while True:
                try:
                    fetch("/health")
                    break
                except OSError as error:
                    if process.poll() is not None:
                        raise RuntimeError("esa serve ended") from error
                    time.sleep(0.3)
            body = {"messages": question["messages"]}
            try:
                try:
                    reply = fetch("/v1/chat/completions", body)
                except urllib.error.HTTPError:
                    named = [one["id"] for one in fetch("/v1/documents")["data"]]
                    reply = fetch("/v1/chat/completions", {**body, "documents": named})
            except urllib.error.HTTPError as error:
                raise RuntimeError(f"{error.code}: {error.read().decode()[:300]}") from error
            except OSError as error:
                raise RuntimeError(f"no answer: {error}") from error
        message = dict(reply["choices"][0]["message"])
        return {**message, "answer": message["content"]}

    def assistant(self, question: JsonObject) -> JsonObject:
        """What the tools `list` and `ask` of `esa mcp` give. Raises RuntimeError."""
        with self.process("mcp", *question.get("arguments", [])) as process:
            requests: Any = process.stdin
            replies: Any = process.stdout

            def send(message: JsonObject) -> None:
                requests.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
                requests.flush()

            def call(number: int, method: str, values: JsonObject) -> JsonObject:
                send({"id": number, "method": method, "params": values})
                for line in replies:
                    message = json.loads(line)
                    if message.get("id") == number:
                        if "error" in message or message["result"].get("isError"):
                            raise RuntimeError(str(message)[:300])
                        return dict(message["result"])
                raise RuntimeError("esa mcp ended")

            client = {"name": "ordinary-questions", "version": "1"}
            start = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
            call(1, "initialize", start)
            send({"method": "notifications/initialized"})
            listing = call(2, "tools/call", {"name": "list", "arguments": {}})["structuredContent"]
            asked = {"question": question["question"]}
            reply = call(3, "tools/call", {"name": "ask", "arguments": asked})["structuredContent"]
        return {**reply, "listing": json.dumps(listing, ensure_ascii=False)}


def ask(question: JsonObject, limit: float) -> JsonObject:
    """The reply to a question, or `error`, after its steps in a new folder."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        folder = Path(place) / "documents"
        folder.mkdir()
        lay_out(question, folder)
        esa = Esa(folder, limit)
        ways = {"serve": esa.server, "mcp": esa.assistant}
        try:
            for step in question.get("steps", []):
                if "esa" in step:
                    esa.run(*step["esa"])
                else:
                    change(step, folder)
            return ways.get(question["how"], esa.command)(question)
        except RuntimeError as error:
            return {"error": str(error)}


def judge(question: JsonObject, reply: JsonObject) -> JsonObject:
    """Whether passage and answer are right, and whether the question was refused."""
    passages = [one["text"] for one in reply.get("evidence") or reply.get("passages") or []]
    answer = reply.get("answer", "")
    if question["how"] == "find" and passages:
        answer = passages[0]
    shown = [one.get("sentence") or one["text"] for one in reply.get("places", [])]
    if "places" in question:
        labels = question["places"]
        hits = sum(any(has(text, label) for text in shown) for label in labels)
        answered = hits == len(labels) == len(shown) == reply.get("count")
        right = 4 * hits >= 3 * len(labels)
    elif question["how"] == "find" and "listed" in question:
        shown = sorted(Path(one["source"]).name for one in reply.get("files", []))
        empty = not passages and reply.get("code") == 1
        right = shown == sorted(question["listed"]) and (shown != [] or empty)
        answered = right
    else:
        right = any(has(text, question["passage"]) for text in passages[:3])
        right &= all(name in reply.get("listing", "") for name in question.get("listed", []))
        accepted = question.get("answers", [question["passage"]])
        answered = any(has(answer, words) for words in accepted)
    everything = " ".join([*passages, *shown, answer, reply.get("listing", "")])
    clean = not any(has(everything, words) for words in question.get("never", []))
    good = clean and "error" not in reply
    return {
        "id": question["id"], "class": question["class"], "passage": right and good,
        "answer": answered and good, "refused": "error" in reply or reply.get("found") is False,
        "clean": clean, "text": answer if answer or not shown else shown,
        "error": reply.get("error"),
    }  # fmt: skip


def table(rows: list[JsonObject]) -> str:
    """One line for each class, and their sum."""
    classes = list(dict.fromkeys(row["class"] for row in rows))
    lines = [f"{'class':<14}{'passage':>9}{'answer':>9}{'refused':>9}{'of':>5}"]
    for name in [*classes, "all"]:
        chosen = [row for row in rows if name in (row["class"], "all")]
        sums = [sum(row[key] for row in chosen) for key in ("passage", "answer", "refused")]
        lines.append(
            f"{name:<14}" + "".join(f"{number:>9}" for number in sums) + f"{len(chosen):5}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", default="", help="append rows to it; those it has are not asked")
    parser.add_argument("--only", default="", help="regular expression for ids")
    parser.add_argument("--limit", type=float, default=120, help="seconds that a command may take")
    options = parser.parse_args()
    done = load_lines(Path(options.out)) if options.out and Path(options.out).exists() else []
    rows = {row["id"]: row for row in done}
    for question in load_lines(QUESTIONS):
        if question["id"] in rows or not re.search(options.only, question["id"]):
            continue
        started = time.perf_counter()
        row = judge(question, ask(question, options.limit))
        row["seconds"] = round(time.perf_counter() - started, 1)
        rows[row["id"]] = row
        append_line(options.out, row)
        marks = " ".join(key for key in ("passage", "answer", "refused") if row[key]) or "wrong"
        print(f"{row['id']}: {marks}: {row['error'] or row['text']!r}", flush=True)
    print(table(list(rows.values())))


if __name__ == "__main__":
    main()
