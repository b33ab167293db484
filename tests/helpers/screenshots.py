"""Screenshots of pages for a person to look at, and axe-core's findings; no test runs it.

`python tests/helpers/screenshots.py OUT PAGE ...` writes every page at 1,400 and 390 px, light,
dark and as readers with deuteranopia see it, and prints each violation; the exit code is their
number.
"""

import sys
from pathlib import Path

from accessibility import violations_of
from browser import PHONE, WIDE, chromium, new_tab

# Colour scheme, and deficiency of vision
LOOKS = {
    "light": ("light", "none"),
    "dark": ("dark", "none"),
    "deuteranopia": ("light", "deuteranopia"),
}
TALLEST = 9000


def main(out, addresses):
    """Write all pictures; the number of violations."""
    out.mkdir(parents=True, exist_ok=True)
    num_violations = 0
    with chromium() as browser:
        for address in addresses:
            for look in LOOKS:
                for width in (WIDE, PHONE):
                    page = opened(browser, address, look, width)
                    report_size(page, address, look, width)
                    stem = "-".join(Path(address.rstrip("/")).with_suffix("").parts[-2:])
                    picture(page, out / f"{stem}-{width}-{look}.png")
                    if look != "deuteranopia":
                        num_violations += report_violations(page)
                    page.context.close()
    return num_violations


def opened(browser, address, look, width):
    """A tab that shows the page to such a reader."""
    scheme, deficiency = LOOKS[look]
    page = new_tab(browser, width, color_scheme=scheme)
    protocol = page.context.new_cdp_session(page)
    protocol.send("Emulation.setEmulatedVisionDeficiency", {"type": deficiency})
    page.goto(address if "://" in address else Path(address).resolve().as_uri())
    return page


def report_size(page, address, look, width):
    """Print how large the page is, and whether it is wider than the screen."""
    root = "document.documentElement"
    height, wide = page.evaluate(f"[{root}.scrollHeight, {root}.scrollWidth]")
    too_wide = f", {wide} px WIDE" if wide > width else ""
    print(f"{address} {width} {look}: {height} px high{too_wide}")


def picture(page, path):
    """Write the page from its top as a PNG."""
    width = page.viewport_size["width"]
    height = min(page.evaluate("document.documentElement.scrollHeight"), TALLEST)
    page.set_viewport_size({"width": width, "height": height})
    page.screenshot(path=path)


def report_violations(page):
    """Print axe-core's findings; their number."""
    violations = violations_of(page)
    for violation in violations:
        print(f"  {violation}")
    return len(violations)


if __name__ == "__main__":
    sys.exit(min(main(Path(sys.argv[1]), sys.argv[2:]), 100))
