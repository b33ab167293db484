"""The page of the paper's published numbers beside the simulated ones, from the rows that were kept
of a whole reproduction.
"""

import csv
from pathlib import Path

from testbed.experiments import paper

KEPT = Path(paper.__file__).with_name("kept_scorecard.csv")
HEAD = """# Published and simulated numbers

Kept of {about}. *Margin* is the distance to the nearest limit in units of the tolerance: 1 in the
middle, 0 at the limit, negative (bold, a miss) outside; in brackets it is not counted.

"""


def page() -> str:
    """The page in Markdown: a row for each published number."""
    about, *lines = KEPT.read_text(encoding="utf-8").splitlines()
    names, *rows = csv.reader(lines)
    table = [names, ["---"] * len(names), *rows]
    body = "".join(f"| {' | '.join(cells)} |\n" for cells in table)
    return HEAD.format(about=about.removeprefix("# ")) + body
