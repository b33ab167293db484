"""What every `testbed measure NAME` is: columns, a row for each point, and its arguments; `print_rows` runs it."""

from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from testbed.command_line import Parser
from testbed.kernels.measure.fingerprint import fingerprint, in_words
from testbed.kernels.measure.timing import warm_up


class Measurement(NamedTuple):
    """One measurement; `rows` checks the arguments before it measures the first."""

    about: str | None
    columns: str
    rows: Callable[[Namespace], Iterable[Sequence[Any]]]
    add_arguments: Callable[[Parser], object] = lambda parser: None


def print_rows(name: str, measurement: Measurement, argv: list[str]) -> None:
    """Print the device, the columns and every row as a CSV; floats have three decimals."""
    parser = Parser(f"measure {name}", measurement.about)
    measurement.add_arguments(parser)
    rows = measurement.rows(parser.parse_args(argv))
    warm_up()
    print(f"# testbed measure {name}, {in_words(fingerprint())}")
    print(measurement.columns)
    for row in rows:
        print(*(round(cell, 3) if isinstance(cell, float) else cell for cell in row), sep=",", flush=True)
