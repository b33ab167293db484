"""Tables of the terminal whose names can be copied, also where it is narrow."""

from collections.abc import Iterator

from rich.cells import cell_len
from rich.table import Column, Table


def unbroken(table: Table, num_names: int = 1) -> Table:
    """The table, in which no word is broken, and of the first num_names columns no cell: it is
    wider than a terminal that is too narrow for that.
    """
    for place, column in enumerate(table.columns):
        parts = _texts(column) if place < num_names else _words(column)
        column.min_width = max(map(cell_len, parts), default=0)
    return table


def _texts(column: Column) -> Iterator[str]:
    for cell in (column.header, *column.cells):
        yield from str(cell).splitlines()


def _words(column: Column) -> Iterator[str]:
    for text in _texts(column):
        yield from text.split()
