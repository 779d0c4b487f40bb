"""A headless Chromium of this machine, driven by Playwright (extra `browser`)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
QUIET = (
    "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-quic",
)  # fmt: skip


def browser_path() -> str | None:
    """The program: $ESA_BROWSER, or a Chromium or Chrome on the path."""
    return os.environ.get("ESA_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def headless_browser() -> Iterator[Any]:
    """A `playwright.sync_api.Browser`. Raises ImportError: Playwright is not installed.

    Nobody but this test's pages is in it, and root may not use the sandbox."""
    from playwright.sync_api import sync_playwright

    root = ("--no-sandbox",) if hasattr(os, "geteuid") and os.geteuid() == 0 else ()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=browser_path(), args=[*QUIET, *root], timeout=90_000
        )
        try:
            yield browser
        finally:
            browser.close()
