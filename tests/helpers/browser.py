"""Pages in Debian's Chromium, driven by playwright."""

import shutil
from contextlib import contextmanager

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
WIDE, PHONE = 1400, 390  # pixels across
MAX_TABS = 60  # presses of Tab before an element is given up


@contextmanager
def chromium():
    """A headless browser; the test is skipped if playwright or Chromium is missing."""
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


def new_tab(browser, width=WIDE, **options):
    """A page in a context of its own; narrow ones are those of phones."""
    viewport = {"width": width, "height": 950}
    return browser.new_context(viewport=viewport, is_mobile=width <= PHONE, **options).new_page()


def tab_to(page, selector):
    """Press Tab until an element has the focus."""
    for _ in range(MAX_TABS):
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab never comes to {selector}")
