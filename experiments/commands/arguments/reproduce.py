"""Arguments of `testbed reproduce`, and the figures that there are."""

import os
from pathlib import Path

from experiments.commands.arguments import Parser, at_least_one
from experiments.runs.known_choices import CONF
from experiments.runs.length_files import FILE_READERS

ORDER = ("table1", "fig1", "fig2", "fig11", "fig12", "fig13", "fig14", "fig15", "fig16", "fig17", "fig18", "fig19")
BEYOND = ("mooncake", "agent_sessions")
BESIDE = ("seeds", "alternatives")  # how far the scorecard can be trusted; kept on disk, apart from `all`


def parser() -> Parser:
    """The command's arguments."""
    known = ", ".join([*available(), *BESIDE, "all"])
    this = Parser(prog="testbed reproduce", description="Run experiments of the PagedAttention paper, draw, score.")
    this.add_argument("figures", nargs="+", metavar="FIGURE", help=known)
    this.add_argument(
        "--lengths", action="append", default=[], metavar="[NAME=]FILE",
        help=f"replay a length file in place of an embedded model ({', '.join(FILE_READERS)}; default sharegpt)",
    )  # fmt: skip
    this.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    this.add_argument("--jobs", type=at_least_one, default=os.cpu_count() or 1, metavar="N", help="default: all cores")
    this.add_argument("--seeds", type=at_least_one, metavar="N", help="seeds 0 to N-1; default: each figure's own")
    return this


def available() -> list[str]:
    """Figures that have a config, in the paper's order."""
    return [name for name in (*ORDER, *BEYOND) if (CONF / "figure" / f"{name}.yaml").exists()]
