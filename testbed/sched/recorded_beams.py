"""Beams that follow a record of real searches."""

import csv
from functools import cached_property

from testbed.core.errors import InputError
from testbed.core.request import Request
from testbed.sched.beams import BeamModel, Replacement

COLUMNS = ["request", "step", "parent", "child"]
FIRST_STEP = 2  # output tokens that a candidate has when parents are chosen for the first time


class RecordedBeams(BeamModel):
    """A CSV with a line for each candidate that did not survive: request, step, parent, child.

    step counts the output tokens that each candidate then has, from 2 on; at a step without lines all survive, and
    a line without parent and child says so, which a record needs where a search ends (the engine writes them).
    Requests follow the recorded searches in turn, whatever their numbers in the file; an output that is longer than
    its search, which ends with its last line, goes through it again.
    """

    def __init__(self, path: str) -> None:
        self.path = str(path)

    @cached_property
    def searches(self) -> list[dict[int, tuple[Replacement, ...]]]:
        """Replacements by step, a search after another."""
        searches = dict[int, dict[int, tuple[Replacement, ...]]]()
        with open(self.path, newline="") as file:
            lines = csv.reader(file)
            if next(lines, None) != COLUMNS:
                raise InputError(f"{self.path}: its first line must be {','.join(COLUMNS)}")
            for cells in lines:
                request, step, pair = self._row(lines.line_num, cells)
                steps = searches.setdefault(request, {})
                known = steps.setdefault(step, ())
                if pair is not None:
                    steps[step] = self._with(known, pair, lines.line_num)
        if not searches:
            raise InputError(f"{self.path}: it has no lines; a record of searches needs some")
        return list(searches.values())

    def parents(self, request: Request, num_generated: int) -> tuple[Replacement, ...]:
        search = self.searches[request.request_id % len(self.searches)]
        step = (num_generated - FIRST_STEP) % (max(search) - FIRST_STEP + 1) + FIRST_STEP
        pairs = search.get(step, ())
        if any(max(pair) >= request.num_seqs for pair in pairs):
            raise InputError(f"{self.path}: {pairs} at step {step} for a beam of width {request.num_seqs}")
        return pairs

    def _row(self, line: int, cells: list[str]) -> tuple[int, int, Replacement | None]:
        """Request, step and pair of a line, None where all survive."""
        numbers = cells[:2] if cells[2:] == ["", ""] else cells
        if len(cells) != len(COLUMNS) or not all(cell.isdecimal() for cell in numbers) or int(cells[1]) < FIRST_STEP:
            wanted = f"{len(COLUMNS)} whole numbers, the step at least {FIRST_STEP}"
            raise InputError(f"{self.path}, line {line}: {','.join(cells)!r}; a line has {wanted}")
        pair = None if numbers != cells else (int(cells[2]), int(cells[3]))
        return int(cells[0]), int(cells[1]), pair

    def _with(self, pairs: tuple[Replacement, ...], pair: Replacement, line: int) -> tuple[Replacement, ...]:
        """The pairs of a step with one more: nobody is a child twice, and no parent is a child."""
        pairs = (*pairs, pair)
        children = {child for _, child in pairs}
        if len(children) < len(pairs) or children & {parent for parent, _ in pairs}:
            raise InputError(f"{self.path}, line {line}: candidate {pair[1]} replaces, or is replaced, twice in a step")
        return pairs
