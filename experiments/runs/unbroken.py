"""Tables of the terminal whose names can be copied, even if it is narrow."""

from rich.cells import cell_len
from rich.table import Table


def unbroken(table: Table, num_names: int = 1) -> Table:
    """The table, in which no word is broken, and of the first num_names columns no cell: it is
    wider than a terminal that is too narrow for that.
    """
    for place, column in enumerate(table.columns):
        text = "\n".join(map(str, (column.header, *column.cells)))
        parts = text.splitlines() if place < num_names else text.split()
        column.min_width = max(map(cell_len, parts), default=0)
    return table
