"""Do two source trees give the same results? Their golden rows and figures, cell by cell; exits 1 at a difference.

python tests/helpers/compare_trees.py OLD NEW [--figures fig2 fig13 ...] [what else `testbed reproduce` takes]

A tree gets an environment of its own, unless --old-python or --new-python names one that has it installed with what
its tests need, or --old-results or --new-results what `testbed reproduce` wrote there. Names of runs, which hash the
source, are left out.
"""

import argparse
import csv
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

RUN_ID = "run"  # a column
Table = list[dict[str, str]]


def main() -> int:
    this = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for side in ("old", "new"):
        this.add_argument(side, type=Path, metavar=side.upper())
        this.add_argument(f"--{side}-python", type=Path)
        this.add_argument(f"--{side}-results", type=Path)
    this.add_argument("--figures", nargs="+", default=["all"])
    requested, more = this.parse_known_args()
    figures = [*requested.figures, *more]
    with TemporaryDirectory() as work:
        old = results(requested.old, requested.old_results, requested.old_python, Path(work, "old"), figures)
        new = results(requested.new, requested.new_results, requested.new_python, Path(work, "new"), figures)
        return compared(old, new)


def results(tree: Path, done: Path | None, python: Path | None, work: Path, figures: list[str]) -> dict[str, Table]:
    """The tables of a tree by name: its golden rows, checked by its tests unless its figures are done, and figures."""
    if done is None:
        work.mkdir()
        done = work / "results"
        python = python.absolute() if python else installed(tree.resolve(), work / "environment")
        run(python, "-m", "pytest", "-q", "-n", "0", "tests/golden", cwd=tree)
        run(python.with_name("testbed"), "reproduce", *figures, "--out", done, cwd=work)
    return {f"golden {name}": table for name, table in tables(tree / "tests" / "golden").items()} | tables(done)


def installed(tree: Path, folder: Path) -> Path:
    """The Python of an environment with the tree and what its tests need."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "-e", f"{tree}[test]", cwd=tree)
    return python


def run(*command: str | Path, cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{(done.stdout + done.stderr)[-2000:]}")


def tables(folder: Path) -> dict[str, Table]:
    """The tables that lie there, without the names of runs."""
    found = {}
    for path in sorted(folder.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        found[path.name] = [{key: value for key, value in row.items() if key != RUN_ID} for row in rows]
    return found


def compared(old: dict[str, Table], new: dict[str, Table]) -> int:
    """Print what was compared; 1 where something differs, or nothing was there to compare."""
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
    sys.exit(main())
