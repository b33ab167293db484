"""`testbed fit-constants`: fits the unmeasured constants to the paper's `calibrate` rows."""

from pathlib import Path
from tempfile import TemporaryDirectory

from testbed.experiments.commands.parser import Parser


def main(argv: list[str]) -> None:
    """Print the constants as lines for the YAML."""
    this = Parser("fit-constants", "Fits the unmeasured constants, and prints them.")
    kinds = this.add_subparsers(dest="kind", required=True, metavar="2023|beams|sampler")
    system = kinds.add_parser("2023", help="software times of the 2023 system, to two bars of Figure 13")
    system.add_argument("lengths", type=Path, help="CSV of ShareGPT lengths in the artifact's order")
    kinds.add_parser("beams", help="the concentration of synthetic beams, to a beam width of 2 in Figure 15b")
    sampler = kinds.add_parser("sampler", help="the time of a plain request over requests, sequences and forks")
    sampler.add_argument(
        "rows", type=Path, nargs="?", help="output of testbed measure sampler (default: the kept rows)"
    )
    options = this.parse_args(argv)
    from testbed.experiments.paper.fits import fit_2023, fit_beams, report  # imported late: help does not need it
    from testbed.experiments.runs.run_store import RunStore

    if options.kind == "sampler":
        print("\n".join(report(options.rows)))
        return
    with TemporaryDirectory() as folder:
        if options.kind == "beams":
            print(f"concentration: {fit_beams(RunStore(Path(folder))):.3g}")
        else:
            fit_2023(RunStore(Path(folder), (("sharegpt", str(options.lengths)),)))
