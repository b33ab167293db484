"""`testbed capacity`: the highest rate at which a share of the requests keeps the objectives, by bisection."""

import sys
from pathlib import Path

from experiments.commands.arguments import Parser
from experiments.front_door.capacity import PRECISION, SHARE, Capacity, capacity

NUMBERS = (
    ("--share", SHARE, "SHARE", f"of the requests that must keep the objectives (default {SHARE})"),
    ("--low", 0.5, "RATE", "first guess in requests/s, moved outward as far as it takes (default 0.5)"),
    ("--high", 2.0, "RATE", "the same, above (default 2)"),
    ("--precision", PRECISION, "P", f"the rate is known to a factor of 1 + P (default {PRECISION})"),
)


def main(argv: list[str]) -> None:
    """Print every rate as it is tried, then the answer."""
    this = Parser(
        prog="testbed capacity",
        description="The highest rate (requests/s) at which a share of the requests keeps slo.ttft_s and slo.tpot_s, "
        "looked for by the bisection that the figures use. Runs are kept, and not run again.",
    )
    help_text = "those of testbed run; slo.ttft_s=... (s to the first token), slo.tpot_s=... (s a later token), or both"
    this.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help=help_text)
    for flag, default, unit, text in NUMBERS:
        this.add_argument(flag, type=float, default=default, metavar=unit, help=text)
    this.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="run folders (default: runs)")
    options = this.parse_intermixed_args(argv)
    found = capacity(
        *options.overrides, share=options.share, low=options.low, high=options.high, precision=options.precision,
        folder=options.runs, seen=lambda rate, inside: tell(rate, inside, options.share),
    )  # fmt: skip
    print(said(found))


def tell(rate: float, inside: float, share: float) -> None:
    """One rate, to standard error at once: a search may take minutes."""
    verdict = "keeps" if inside >= share else "misses"
    print(f"{rate:>8g} req/s: {100 * inside:5.1f}% inside, {verdict} {100 * share:g}%", file=sys.stderr, flush=True)


def said(found: Capacity) -> str:
    """The answer in one line."""
    best = max((point for point in found.points if point[1] >= found.share), default=None)
    goodput = f"; at {best[0]:g} req/s goodput is {best[2]:.3g} req/s" if best else ""
    return f"capacity: {found.rate:.3g} req/s keep {100 * found.share:g}% inside{goodput}"
