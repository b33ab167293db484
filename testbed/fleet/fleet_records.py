"""The records of a fleet: those of its engines together, every row with its engine."""

from collections.abc import Sequence
from dataclasses import fields
from operator import add

import numpy as np

from testbed.core.errors import PlugInError
from testbed.engine.packed_rows import PackedRows
from testbed.engine.recorder import SHAPE, SLOTS, Recorder
from testbed.engine.token_gaps import TokenGaps
from testbed.engine.token_gaps import together as gaps_together
from testbed.engine.totals import Measures, Totals

ENGINE = "engine"


def together(recorders: Sequence[Recorder]) -> Recorder:
    """One recorder with the requests and the spans of all, these in order of time; its rows have a
    column `engine`. That of a single engine is its own recorder.
    """
    if len(recorders) == 1:
        return recorders[0]
    fleet = FleetRecorder(recorders)
    columns = list(fleet.requests.columns())
    fleet.requests = _tables(columns, [recorder.requests for recorder in recorders])
    names = [*SHAPE, "running", *SLOTS]
    spans = [recorder.spans for recorder in recorders]
    fleet.spans = _tables(names, spans, order_by="start_ps")
    fleet.totals = summed([recorder.totals for recorder in recorders])
    fleet.num_moved = sum(recorder.num_moved for recorder in recorders)
    fleet.end_ps = max(recorder.end_ps for recorder in recorders)
    fleet.policy = recorders[0].policy
    for recorder in recorders:
        fleet.rejections |= recorder.rejections
        fleet.cancellations |= recorder.cancellations
    return fleet


def _tables(
    names: Sequence[str], tables: Sequence[PackedRows], order_by: str | None = None
) -> PackedRows:
    columns = [table.columns() for table in tables]
    numbers = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    merged = {name: np.concatenate([table[name] for table in columns]) for name in names}
    merged[ENGINE] = numbers
    order = slice(None) if order_by is None else np.argsort(merged[order_by], kind="stable")
    rows = PackedRows(*merged)
    if len(numbers):
        rows.extend([column[order] for column in merged.values()])
    return rows


def summed(parts: Sequence[Totals]) -> Totals:
    """The sums of several engines together."""
    total = Totals()
    for part in parts:
        for field in fields(Totals):
            own, other = getattr(total, field.name), getattr(part, field.name)
            if isinstance(own, Measures):
                setattr(total, field.name, Measures(*map(add, own, other)))
            else:
                setattr(total, field.name, own + other)
    return total


def check_conservation(num_arrived: int, recorders: Sequence[Recorder]) -> None:
    """Every request that has arrived at the fleet has ended on exactly one engine.

    Raises PlugInError if one is lost, or answered twice.
    """
    ids = np.concatenate([recorder.requests.columns()["request_id"] for recorder in recorders])
    twice = len(ids) - len(np.unique(ids))
    totals = summed([recorder.totals for recorder in recorders])
    ended = totals.finished + totals.rejected + totals.cancelled
    if twice or len(ids) != num_arrived or ended != num_arrived:
        raise PlugInError(
            f"a fleet of {len(recorders)} engines lost a request, or has one twice: {num_arrived} "
            f"arrived, {totals.finished} are finished, {totals.rejected} rejected, "
            f"{totals.cancelled} cancelled; {len(ids)} have a row, {twice} of them a second one"
        )


class FleetRecorder(Recorder):
    """The records of several engines as those of one."""

    def __init__(self, recorders: Sequence[Recorder]) -> None:
        super().__init__()
        self._recorders = recorders

    def token_gaps(self) -> TokenGaps:
        return gaps_together([recorder.token_gaps() for recorder in self._recorders])


class FleetProgress:
    """The counts of all engines together while they run."""

    def __init__(self, recorders: Sequence[Recorder]) -> None:
        self._recorders = recorders

    @property
    def totals(self) -> Totals:
        """Sums since the start."""
        return summed([recorder.totals for recorder in self._recorders])
