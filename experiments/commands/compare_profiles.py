"""`testbed compare-profiles`: errors of one profile against another of the same model, section by section."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.experiments.commands.parser import Parser

if TYPE_CHECKING:
    from testbed.experiments.validation.profile_comparison import SectionErrors

HEAD = ("section", "shapes", "outside", "off, median", "off, p90", "bias, median")


def parser() -> Parser:
    this = Parser("compare-profiles", "Errors of one profile against another of the same model, section by section.")
    this.add_argument("first", metavar="PROFILE", help="a profile JSON, or the name of a shipped profile")
    this.add_argument("second", metavar="REFERENCE", help="the reference profile, which determines the shapes")
    return this


def main(argv: list[str]) -> None:
    """Print the errors at the shapes of the reference's points."""
    options = parser().parse_args(argv)
    from testbed.cost.sections import read_profile
    from testbed.experiments.commands.console import plain_table, wide_console
    from testbed.experiments.validation.profile_comparison import compare

    table = plain_table(HEAD, cells(compare(read_profile(options.first), read_profile(options.second))))
    names = [Path(name).name for name in (options.first, options.second)]
    console = wide_console()
    console.print(f"{names[0]} against {names[1]}, in percent of the latter, at its shapes")
    console.print(table)


def cells(found: "Iterable[SectionErrors]") -> Iterator[list[str]]:
    """A row per section."""
    import numpy as np

    for one in found:
        median = one.percent(lambda errors: np.median(np.abs(errors)))
        p90 = one.percent(lambda errors: np.percentile(np.abs(errors), 90))
        counts = (f"{len(one.errors):,}", f"{one.outside:,}")
        yield [one.section, *counts, f"{median:.1f}%", f"{p90:.1f}%", f"{one.percent(np.median):+.1f}%"]
