"""`testbed reproduce` and `plot`: the experiments of the paper, their figures and the scorecard."""

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from testbed.core.errors import InputError
from testbed.experiments.commands.terminal import FORMATS, Parser, at_least_one, wide_console
from testbed.experiments.runs.choice_names import FILE_READERS, files_of, length_file
from testbed.experiments.runs.whole_files import write_text

ORDER = ("table1", "fig1", "fig2", "fig11", "fig12", "fig13", "fig14", "fig15", "fig16", "fig17", "fig18", "fig19")
BEYOND = ("mooncake", "agent_sessions", "tiers", "store_rules", "time_to_live", "transfer_sizes",
          "groups", "hit_units")  # fmt: skip
NO_COSTS = ("table1", "fig11", "transfer_sizes", "groups", "hit_units")  # the same on any GPU
ALTERNATIVES = "alternatives"  # the scorecard's sensitivity; not part of `all`
SIZE = re.compile(r"(\d+(?:\.\d+)?)x(\d+(?:\.\d+)?)")


def parser() -> Parser:
    known = ", ".join([*available(), ALTERNATIVES, "all"])
    this = Parser("reproduce", "Runs experiments of the PagedAttention paper, draws figures and writes a scorecard.")
    this.add_argument("figures", nargs="+", metavar="FIGURE", help=known)
    this.add_argument(
        "--lengths", action="append", default=[], metavar="[NAME=]FILE",
        help=f"replay a length file in place of an embedded model ({', '.join(FILE_READERS)}; default sharegpt)",
    )  # fmt: skip
    this.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    this.add_argument("--jobs", type=at_least_one, default=os.cpu_count() or 1, metavar="N", help="default: all cores")
    this.add_argument("--seeds", type=at_least_one, metavar="N", help="seeds 0 to N-1; default: each figure's seeds")
    this.add_argument("--profile", metavar="FILE", help="of testbed calibrate or import-profile: also the figures on "
                      "its GPU, in a folder of its name, with columns in the scorecard")  # fmt: skip
    return this


def main(argv: list[str]) -> None:
    """Run, write tables, draw from the tables, score."""
    options = parser().parse_args(argv)
    from testbed.experiments.paper.reproduction import load, perform, run_alternatives, run_studies, score
    from testbed.experiments.paper.scorecard import card_table, next_to_other, remarks
    from testbed.experiments.runs.run_store import RunStore, gpu_of_profile

    names = chosen(options.figures)
    studies = [load(name) for name in names if name != ALTERNATIVES]
    store = RunStore(options.out / "runs", tuple(length_file(text) for text in options.lengths))
    other = gpu_of_profile(options.profile).name if options.profile else ""
    options.out.mkdir(parents=True, exist_ok=True)
    console = wide_console()
    tables = run_studies(studies, store, options.jobs, options.seeds, options.out)
    if ALTERNATIVES in names:
        paper = [name for name in available() if name not in BEYOND]
        table = run_alternatives(paper, partial(perform, store=store, jobs=options.jobs))
        write_text(options.out / "alternatives.csv", table.to_csv(index=False))
        console.print(table.to_string(index=False))
    if not studies:
        return
    card = score(studies, tables, options.out)
    if options.profile:
        folder = options.out / other
        folder.mkdir(exist_ok=True)
        moved = [study for study in studies if study.name not in NO_COSTS]
        theirs = run_studies(moved, replace(store, profile=options.profile), options.jobs, options.seeds, folder)
        card = next_to_other(card, score(moved, theirs, folder), other)
        write_text(options.out / "scorecard.csv", card.to_csv(index=False))
        console.print(f"the same figures on {other}, with the paper's pools: {folder}")
    console.print(card_table(card))
    for remark in remarks(card, dict(store.lengths), options.figures):
        console.print(remark)
    console.print(f"figures, tables and scorecard.csv: {options.out}")


def available() -> list[str]:
    """Figures that have a config, in the paper's order."""
    there = files_of("figure")
    return [name for name in (*ORDER, *BEYOND) if name in there]


def chosen(figures: Sequence[str]) -> list[str]:
    """The requested figures, each once, in the paper's order."""
    known = [*available(), ALTERNATIVES]
    unknown = [name for name in figures if name not in (*known, "all")]
    if unknown:
        raise InputError(f"figure {unknown[0]!r}: is unknown (choose from {', '.join(known)}, all)")
    return [name for name in known if name in figures or ("all" in figures and name in ORDER)]


def plot(argv: list[str]) -> None:
    """Draw, and print the path."""
    this = Parser("plot", "Draws a figure from its stored table.")
    this.add_argument("figure", metavar="FIGURE", help=", ".join(available()))
    this.add_argument("folder", type=Path, metavar="FOLDER", help="folder of testbed reproduce, with FIGURE.csv")
    this.add_argument("--out", type=Path, metavar="FILE", help="default: FIGURE.pdf; the suffix sets the format "
                      f"({', '.join(FORMATS)})")  # fmt: skip
    this.add_argument("--size", metavar="WxH", help="inches, such as 7x3.5 (default: the figure's size)")
    options = this.parse_args(argv)
    out = options.out or Path(f"{options.figure}.pdf")
    if options.figure not in available():
        raise InputError(f"figure {options.figure!r}: is unknown (choose from {', '.join(available())})")
    if out.suffix not in FORMATS:
        raise InputError(
            f"--out {out}: cannot be drawn as {out.suffix or 'a file without suffix'} ({', '.join(FORMATS)})"
        )
    size = SIZE.fullmatch(options.size or "0x0")
    if size is None or (options.size and not all(0.5 <= float(inches) <= 50 for inches in size.groups())):
        raise InputError(f"--size {options.size}: no width and height of 0.5 to 50 inches (such as 7x3.5)")
    table = options.folder / f"{options.figure}.csv"
    if not table.is_file():
        raise InputError(f"{table}: no such file (testbed reproduce {options.figure} --out {options.folder} writes it)")
    from testbed.experiments.paper.reproduction import load
    from testbed.experiments.runs.plots import save

    figure = load(options.figure).draw(table)
    if options.size:
        figure.set_size_inches(float(size[1]), float(size[2]))
    save(figure, out)
    print(f"figure: {out}")
