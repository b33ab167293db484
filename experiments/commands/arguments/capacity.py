"""Arguments of `testbed capacity`."""

from pathlib import Path

from experiments.commands.arguments import Parser

SHARE, PRECISION = 0.9, 0.02
NUMBERS = (
    ("--share", SHARE, "SHARE", f"of the requests that must keep the objectives (default {SHARE})"),
    ("--low", 0.5, "RATE", "first guess in requests/s, moved outward as far as it takes (default 0.5)"),
    ("--high", 2.0, "RATE", "the same, above (default 2)"),
    ("--precision", PRECISION, "P", f"the rate is known to a factor of 1 + P (default {PRECISION})"),
)


def parser() -> Parser:
    """The command's arguments."""
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
    return this
