"""`testbed capacity`: the highest rate at which a share of the requests keeps the objectives, by bisection."""

import sys

from experiments.commands.arguments.capacity import parser
from experiments.front_door.capacity import Capacity, capacity


def main(argv: list[str]) -> None:
    """Print every rate as it is tried, then the answer."""
    options = parser().parse_intermixed_args(argv)
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
