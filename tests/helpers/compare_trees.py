"""Are the results of two source trees the same? Their tables, cell by cell; exits 1 at a
difference.

python tests/helpers/compare_trees.py OLD NEW

OLD and NEW are folders of CSVs: tests/golden of two trees, or what `testbed reproduce all --out
FOLDER` wrote with each of them. Names of runs, which hash the source, are left out.
"""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

RUN_ID = "run"  # a column
Table = list[dict[str, str]]


def tables(folder: Path) -> dict[str, Table]:
    """The tables that lie there, without the names of runs."""
    found = {}
    for path in sorted(folder.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        found[path.name] = [
            {key: value for key, value in row.items() if key != RUN_ID} for row in rows
        ]
    return found


def compared(old: dict[str, Table], new: dict[str, Table]) -> int:
    """Print what was compared; 1 if something differs, or nothing was there to compare."""
    print(f"{'table':<28}{'rows':>8}{'values':>10}{'different':>11}")
    different = 0
    for name in sorted(old.keys() | new.keys()):
        one, other = old.get(name), new.get(name)
        if one is None or other is None:
            print(f"{name:<28}  only {'new' if one is None else 'old'}")
            different += 1
            continue
        found = list(differences(one, other))
        print(f"{name:<28}{len(one):>8}{sum(map(len, one)):>10}{len(found):>11}", *found[:1])
        different += len(found)
    return 1 if different or not old else 0


def differences(one: Table, other: Table) -> Iterator[str]:
    if len(one) != len(other):
        yield f"{len(one)} rows, {len(other)} rows"
    for number, (row, new) in enumerate(zip(one, other, strict=False), 2):
        for key in dict.fromkeys([*row, *new]):
            if row.get(key) != new.get(key):
                yield f"line {number}, {key}: {row.get(key)} -> {new.get(key)}"


if __name__ == "__main__":
    sys.exit(compared(*(tables(Path(folder)) for folder in sys.argv[1:3])))
