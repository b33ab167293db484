"""`testbed compare-profiles`: how far one profile is off another of the same model, section by section."""

from pathlib import Path

import numpy as np
from rich.table import Table

from experiments.commands.arguments.compare_profiles import parser
from experiments.commands.console import wide_console
from experiments.validation.profile_comparison import SectionErrors, compare
from testbed.cost.sections import read_profile


def main(argv: list[str]) -> None:
    """Print the errors at the shapes at which the second one was measured."""
    options = parser().parse_args(argv)
    names = [str(Path(name).name) for name in (options.first, options.second)]
    found = list(compare(read_profile(options.first), read_profile(options.second)))
    console = wide_console()
    console.print(f"{names[0]} beside {names[1]}, in percent of the latter, at its shapes", highlight=False)
    console.print(shown(found))


def shown(found: list[SectionErrors]) -> Table:
    """A line for each section."""
    table = Table("section", "shapes", "outside", "off, median", "off, p90", "bias, median", box=None, pad_edge=False)
    for one in found:
        values = (one.percent(of) for of in (_median, _p90, np.median))
        numbers = (f"{value:{sign}.1f}%" for value, sign in zip(values, ("", "", "+"), strict=True))
        table.add_row(one.section, f"{len(one.errors):,}", f"{one.outside:,}", *numbers)
    return table


def _median(errors: np.ndarray) -> float:
    return float(np.median(np.abs(errors)))


def _p90(errors: np.ndarray) -> float:
    return float(np.percentile(np.abs(errors), 90))
