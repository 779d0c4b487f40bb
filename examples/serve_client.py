"""Asks a running `esa serve` with OpenAI's own client; the answer streams, the evidence follows.

    pip install openai
    esa serve book.txt                      # prints the address to give as --url
    python examples/serve_client.py "Who is Ahab?"

Only the base URL differs from OpenAI. docs/serve.md has the routes and the limits.
"""

from __future__ import annotations

import argparse
import os

from openai import OpenAI


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="One question to a running `esa serve`.")
    parser.add_argument("question")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--token", default=os.environ.get("ESA_TOKEN") or "none")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    client = OpenAI(base_url=given.url, api_key=given.token)
    stream = client.chat.completions.create(
        model="esa", messages=[{"role": "user", "content": given.question}], stream=True
    )
    for chunk in stream:
        choice = chunk.choices[0]
        print(choice.delta.content or "", end="", flush=True)
        if choice.finish_reason:
            print()
            # What OpenAI's answers do not have: the passages, with their places.
            for passage in (chunk.model_extra or {})["evidence"]:
                words = " ".join(passage["text"].split())
                print(f"  {passage['document']}, line {passage['line']}: {words}")


if __name__ == "__main__":
    main()
