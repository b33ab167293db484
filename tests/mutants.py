"""Plants faults in the product and asks whether the default tests notice: `python tests/mutants.py [AREA ...]`.

Not part of the default run. Each fault is a table in tests/planted_faults/AREA.toml: `file`, `old` (once in that file),
`new` and `why` (what a user would get wrong); `speed_only` marks one that changes no answer. An area, or a fault for
itself, names the tests that are asked `first`; who survives these meets the whole default run, five minutes of two
cores, unless `--quick` leaves that out. A test that fails without the fault, too, ends the run. `--kept FILE` keeps a
line a fault and skips those that are in it, so that a run can be broken off. Where a change of the sources moves an old
text, the script says which line of which list is to be mended. All 300 or so faults take half an hour of one core.
"""

import argparse
import csv
import multiprocessing
import os
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from queue import SimpleQueue

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = Path(__file__).parent / "planted_faults"
COPIED = ("testbed", "traces", "experiments", "kernels", "tests", "pyproject.toml", "README.md", "LICENSE", ".ci")
SURVIVED, HUNG = "survived", "hung"
LIMIT_S = {"first": 300, "whole": 3000}
# Tests run in forks of a process that has imported what pytest would import in each: most of a short test's time.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["pytest", "hypothesis.strategies", "hydra.extra.pytest_plugin", "numpy", "simpy"])
TIMES = count(2_000_000_000)


@dataclass(frozen=True)
class Fault:
    """One planted fault; `first` are the tests that are asked before all others."""

    area: str
    file: str
    old: str
    new: str
    why: str
    first: list[str] = field(default_factory=list)
    speed_only: bool = False

    @property
    def key(self) -> str:
        """Names the fault in a kept file."""
        return f"{self.file}: {self.old.strip()} -> {self.new.strip()}"

    def check(self) -> None:
        """Exit where the old text is not in the file exactly once, or the new one is no program."""
        text = (ROOT / self.file).read_text()
        found = text.count(self.old)
        if found != 1 or self.old == self.new:
            sys.exit(f"{self.area}.toml: {self.file} holds {self.old!r} {found} times; mend the list")
        compile(text.replace(self.old, self.new), self.file, "exec")


def faults(areas: list[str]) -> Iterator[Fault]:
    """All faults of these areas (of all, if none is named), checked against the sources."""
    for path in sorted(FOLDER.glob("*.toml")):
        if areas and path.stem not in areas:
            continue
        listed = tomllib.loads(path.read_text())
        for entry in listed["fault"]:
            fault = Fault(path.stem, **{"first": listed["first"], **entry})
            fault.check()
            yield fault


def plant_and_ask(fault: Fault, tree: Path, quick: bool, proven: set[str]) -> str:
    """The first test that fails with the fault in place, HUNG, or SURVIVED. The tree is whole again afterwards."""
    path = tree / fault.file
    sound = path.read_text()
    rewrite(path, sound.replace(fault.old, fault.new))
    try:
        killers = (ask(tree, [test], "first") for test in fault.first)  # one by one: most faults meet their test early
        killer = next(filter(None, killers), "") or ("" if quick else ask(tree, [], "whole"))
    finally:
        rewrite(path, sound)
    if killer not in ("", HUNG):
        prove(tree, killer.split("[")[0], proven)
    return killer or SURVIVED


def prove(tree: Path, test: str, proven: set[str]) -> None:
    """Exit where this test fails without any fault: it would kill whatever is planted. Each is asked once."""
    if test not in proven and ask(tree, [test], "first"):
        sys.exit(f"{test} fails on the sound tree too; mend it first")
    proven.add(test)


def ask(tree: Path, tests: list[str], limit: str) -> str:
    """The name of the first test that fails, HUNG, or nothing."""
    said = tree / "said.txt"
    process = FORKS.Process(target=run_tests, args=(tree, tests, said))
    process.start()
    process.join(LIMIT_S[limit])
    if process.exitcode is None:
        process.kill()
        process.join()
        return HUNG
    if process.exitcode == 0:
        return ""
    failed = [line for line in said.read_text().splitlines() if line.startswith(("FAILED", "ERROR"))]
    if not failed:
        sys.exit(f"pytest itself failed (exit {process.exitcode}): {said.read_text()[-1600:]}")
    return failed[0].split(" - ")[0].split(" ", 1)[1]


def run_tests(tree: Path, tests: list[str], said: Path) -> None:
    """In a process of its own: pytest in this tree, up to the first failure, with the same examples every time."""
    shutil.rmtree(tree / ".hypothesis", ignore_errors=True)
    with said.open("w") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    os.chdir(tree)
    sys.dont_write_bytecode = False
    os.environ["PYTHONPATH"] = str(tree)
    sys.path.insert(0, str(tree))
    options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--no-header", "--hypothesis-seed=0"]
    sys.exit(int(pytest.main([*options, *tests])))


def rewrite(path: Path, text: str) -> None:
    """Write a source at a time of its own, so that nobody takes the bytecode of another text of it for its own."""
    path.write_text(text)
    seconds = next(TIMES)
    os.utime(path, (seconds, seconds))


def copies(num: int, folder: Path) -> SimpleQueue[Path]:
    """Trees to plant faults in, so that the sources themselves are never touched."""
    trees = SimpleQueue[Path]()
    for i in range(num):
        tree = folder / str(i)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                tree.mkdir(exist_ok=True)
                shutil.copy(source, tree / name)
        trees.put(tree)
    return trees


def kept(path: Path | None) -> dict[str, str]:
    """What an earlier run found, by fault."""
    if path is None or not path.exists():
        return {}
    with path.open(newline="") as text:
        return {row["fault"]: row["killed_by"] for row in csv.DictReader(text)}


def keep(path: Path | None, fault: Fault, killer: str) -> None:
    """Append one line, with a header in a new file."""
    if path is None:
        return
    new = not path.exists()
    with path.open("a", newline="") as text:
        table = csv.writer(text, lineterminator="\n")
        if new:
            table.writerow(["area", "fault", "why", "killed_by"])
        table.writerow([fault.area, fault.key, fault.why, killer])


def report(found: list[tuple[Fault, str]]) -> None:
    """The kill rate among faults that change an answer, and who survived."""
    real = [(fault, killer) for fault, killer in found if not fault.speed_only]
    killed = sum(killer != SURVIVED for _, killer in real)
    print(f"{killed} of {len(real)} faults killed ({killed / max(1, len(real)):.1%}); ", end="")
    print(f"{len(found) - len(real)} more change speed alone")
    for fault, killer in found:
        if killer == SURVIVED:
            print(f"  survived{' (speed only)' if fault.speed_only else ''}: {fault.key} ({fault.why})")


def main() -> None:
    """Plant every fault in turn; the exit code is 1 below 95% killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("areas", nargs="*", help="names of tests/planted_faults/*.toml; all by default")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--kept", type=Path, help="CSV of what was found, appended to and read again")
    parser.add_argument("--quick", action="store_true", help="ask an area's own tests alone: for work on the list")
    chosen = parser.parse_args()
    before = kept(chosen.kept)
    found, proven = list[tuple[Fault, str]](), set[str]()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(chosen.jobs) as pool:
        trees = copies(chosen.jobs, Path(folder))

        def judge(fault: Fault) -> tuple[Fault, str]:
            if fault.key in before:
                return fault, before[fault.key]
            tree = trees.get()
            try:
                return fault, plant_and_ask(fault, tree, chosen.quick, proven)
            finally:
                trees.put(tree)

        for fault, killer in pool.map(judge, list(faults(chosen.areas))):
            if fault.key not in before:
                keep(chosen.kept, fault, killer)
                print(f"{killer:60.60} {fault.key}", flush=True)
            found.append((fault, killer))
    report(found)
    real = [killer for fault, killer in found if not fault.speed_only]
    sys.exit(sum(killer != SURVIVED for killer in real) < 0.95 * len(real))


if __name__ == "__main__":
    main()
