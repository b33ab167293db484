"""`testbed capacity`: finds the highest request rate at which a share of the requests meets the SLO, by bisection."""

import sys
from pathlib import Path

from testbed.experiments.commands.parser import Parser

PROBES = Path("runs/capacity")  # apart from the runs that a person has asked for
NUMBERS = (
    ("--share", 0.9, "SHARE", "share of the requests that must meet the SLO (default 0.9)"),
    ("--low", 0.5, "RATE", "lower first guess in requests/s, moved outward as needed (default 0.5)"),
    ("--high", 2.0, "RATE", "upper first guess (default 2)"),
    ("--precision", 0.02, "P", "the rate is known to a factor of 1 + P (default 0.02)"),
)


def main(argv: list[str]) -> None:
    """Print every tried rate, then the answer."""
    this = Parser(
        "capacity",
        "Finds the highest rate (requests/s) at which a share of the requests meets slo.ttft_s and slo.tpot_s, "
        "by the bisection of the paper's figures. Run folders are stored and reused.",
    )
    help_text = "as in testbed run; slo.ttft_s=... (s to the first token), slo.tpot_s=... (s per later token), or both"
    this.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help=help_text)
    this.add_argument("--from-vllm", metavar="COMMAND", help='options of "vllm serve MODEL ...", as in testbed run')
    for flag, default, unit, text in NUMBERS:
        this.add_argument(flag, type=float, default=default, metavar=unit, help=text)
    this.add_argument("--runs", type=Path, default=PROBES, metavar="DIR",
                      help=f"folders of the simulated rates (default: {PROBES})")  # fmt: skip
    options = this.parse_intermixed_args(argv)
    from testbed.api import capacity
    from testbed.experiments.runs.overrides import expand

    words = options.overrides if options.from_vllm is None else expand(options.from_vllm, options.overrides)
    needed = f"{100 * options.share:g}%"

    def show(rate: float, inside: float) -> None:  # immediately: a search may take minutes
        verdict = "keeps" if inside >= options.share else "misses"
        print(f"{rate:>8g} req/s: {100 * inside:5.1f}% inside, {verdict} {needed}", file=sys.stderr, flush=True)

    found = capacity(
        *words, share=options.share, low=options.low, high=options.high,
        precision=options.precision, folder=options.runs, seen=show,
    )  # fmt: skip
    inside, goodput = next(point[1:] for point in found.points if point[0] == found.rate)
    print(
        f"capacity: {found.rate:g} req/s, simulated: {100 * inside:.1f}% of the requests meet the SLO "
        f"({needed} must), goodput {goodput:.3g} req/s"
    )
