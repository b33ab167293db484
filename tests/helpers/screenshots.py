"""Screenshots of pages for a person to look at, and axe-core's findings; no test runs it.

`python tests/helpers/screenshots.py OUT PAGE ...` writes every page at 1,400 and 390 px, light,
dark and as readers with deuteranopia see it. AXE=axe.min.js (npm: axe-core) prints each violation;
the exit code is their number.
"""

import os
import sys
from pathlib import Path

from browser import CHROMIUM, Browser

LOOKS = {
    "light": ("light", "none"),
    "dark": ("dark", "none"),
    "deuteranopia": ("light", "deuteranopia"),
}
WIDTHS = (1400, 390)
TALLEST = 9000
AXE = (
    "axe.run().then(found => found.violations.map(one => `${one.id}: ${one.help}: "
    "${one.nodes[0].html}`))"
)


def main(out, pages):
    """Write all pictures; the number of violations."""
    if CHROMIUM is None:
        print("no Chromium is installed: no screenshot is made")
        return 0
    out.mkdir(parents=True, exist_ok=True)
    script = Path(os.environ["AXE"]).read_text() if "AXE" in os.environ else None
    browser, found = Browser(), 0
    for page in pages:
        for name, (scheme, deficiency) in LOOKS.items():
            for width in WIDTHS:
                browser.look(scheme, deficiency)
                browser.open(page if "://" in page else Path(page).resolve().as_uri())
                browser.resize(width)
                height = browser.value("document.documentElement.scrollHeight")
                wide = browser.value("document.documentElement.scrollWidth")
                stem = "-".join(Path(page.rstrip("/")).with_suffix("").parts[-2:])
                (out / f"{stem}-{width}-{name}.png").write_bytes(
                    browser.screenshot(width, min(height, TALLEST))
                )
                print(
                    f"{stem} {width} {name}: {height} px high"
                    + (f", {wide} px WIDE" if wide > width else "")
                )
                if script and name != "deuteranopia":
                    browser.value(script)
                    violations = browser.value(AXE)
                    found += len(violations)
                    print(
                        *(f"  {violation}" for violation in violations),
                        sep="\n",
                        end="\n" * bool(violations),
                    )
    browser.close()
    return found


if __name__ == "__main__":
    sys.exit(min(main(Path(sys.argv[1]), sys.argv[2:]), 100))
