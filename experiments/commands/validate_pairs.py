"""`testbed validate-pairs`: compares runs on a GPU with their simulations, as tables; it needs no GPU."""

from pathlib import Path

from testbed.core.errors import InputError
from testbed.experiments.commands.parser import Parser

RESULTS = Path("kernels/results/engine")
PROFILE = RESULTS / "profiles" / "h200-llama-3-8b-tp1.json"
FORMATS = (".pdf", ".png", ".svg")


def main(argv: list[str]) -> None:
    """Simulate every pair, and print the tables in Markdown."""
    this = Parser("validate-pairs", "Compares runs on a GPU with their simulations, as tables.")
    this.add_argument("--runs", type=Path, default=RESULTS / "pairs", help="folder of testbed pairs")
    this.add_argument("--profile", type=Path, default=PROFILE, help="the engine's profile")
    this.add_argument("--out", type=Path, help="folder for the simulated runs; default: none")
    this.add_argument("--figure", type=Path, metavar="FILE", help=f"a figure ({', '.join(FORMATS)})")
    options = this.parse_args(argv)
    if options.figure and options.figure.suffix not in FORMATS:
        raise InputError(f"--figure {options.figure}: must end in {', '.join(FORMATS)}")
    from testbed.experiments.validation.pairs import section, simulated
    from testbed.kernels.engine.pairs.plan import device

    pairs = simulated(options.runs, options.profile, device(), options.out)
    print(section(pairs))
    if options.figure:
        from testbed.experiments.validation.pairs_figure import draw

        draw(pairs, options.figure)
