"""`testbed plot`: a figure again, from the table that `testbed reproduce` has kept; it runs nothing."""

import re
from pathlib import Path

from testbed.core.errors import InputError
from testbed.experiments.commands.parser import Parser
from testbed.experiments.commands.reproduce import available

FORMATS = (".pdf", ".png", ".svg")
SIZE = re.compile(r"(\d+(?:\.\d+)?)x(\d+(?:\.\d+)?)")


def main(argv: list[str]) -> None:
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
    from testbed.experiments.runs.figure_style import save

    figure = load(options.figure).draw(table)
    if options.size:
        figure.set_size_inches(float(size[1]), float(size[2]))
    save(figure, out)
    print(f"figure: {out}")
