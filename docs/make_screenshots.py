"""Makes page.png and page-dark.png: the page of `esa serve` with the default model.

    make screenshots

Needs a Chromium and the extra `browser`. What is read is stored in the library, so that the next
time is quick.
"""

from __future__ import annotations

import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests/support")]

from browser import headless_browser  # noqa: E402

DOCUMENTS = ["examples/chronicle.md", "docs/answers.md", "docs/library.md"]
QUESTION = "Where did Mistwick put its books when the storm was over?"
SCHEMES = {"light": "page.png", "dark": "page-dark.png"}
SIZE = {"width": 1280, "height": 760}


def shoot(browser: Any, url: str, scheme: str, name: str) -> None:
    context = browser.new_context(viewport=SIZE, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(300_000)
    page.goto(url)
    page.wait_for_selector("#list input:checked")
    for number in range(1, len(DOCUMENTS)):
        page.uncheck(f"#document-{number}")
    page.fill("#question", QUESTION)
    page.press("#question", "Enter")
    page.click(".passage >> nth=0")
    page.wait_for_selector(".number.here")
    page.wait_for_timeout(1500)
    picture = Image.open(BytesIO(page.screenshot()))
    picture.quantize(96).save(ROOT / "docs" / name, optimize=True)
    context.close()


def main() -> None:
    command = [sys.executable, "-m", "esa_cli", "serve", "--keep", "--port", "0", *DOCUMENTS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        assert server.stdout is not None
        try:
            url = server.stdout.readline().strip().removesuffix("v1")
            with headless_browser() as browser:
                for scheme, name in SCHEMES.items():
                    shoot(browser, url, scheme, name)
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
