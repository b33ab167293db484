"""One-line faults, and whether the tests notice: `python tests/faults.py --seed 1 --count 150`, or
`--planted`.

Faults are drawn by a seed from the syntax trees of the sources (a comparison, an operator, a
constant, a condition, two arguments, a statement left out), or read from tests/faults.toml: an
`old` text that stands once in the sources, a `new` one, and `why` a user would care. Each is
planted in a copy of the tree, where the tests that run its line are asked, the quickest first, up
to the first that fails. Which test runs which line is measured once (that takes a few times as long
as the default run; needs pytest-cov) and kept in .pytest_cache/faults until a source changes; of
test modules that have changed since, all tests are asked. A kernel's line that no test runs here
needs a GPU and gets no fault. Faults that change nothing are listed in tests/faults.toml with the
reason, at most one in ten of those drawn.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, chain
from pathlib import Path

import pytest
from coverage import CoverageData
from fault_places import ROOT, SOURCES, Fault, faults_of, listed, python_files

KEPT = ROOT / ".pytest_cache" / "faults"
HEAVY = [
    "pytest",
    "hypothesis",
    "pandas",
    "matplotlib.pyplot",
    "hydra",
    "torch",
]  # imported before the tests fork
PYTEST = [
    "-q",
    "-p",
    "faults",
    "-p",
    "no:cacheprovider",
    "--hypothesis-seed=0",
    "-o",
    "addopts=",
    "-m",
    "not slow",
]
BUDGET_S = 120  # of tests for one fault, as measured


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """This script is a plug-in of the pytest that it starts: only those run that are asked, in
    their order.
    """
    if "ASKED" in os.environ:
        tests, modules = json.loads(Path(os.environ["ASKED"]).read_text())
        order = {test: i for i, test in enumerate(tests)}
        asked = [
            one for one in items if one.nodeid in order or one.nodeid.partition("::")[0] in modules
        ]
        items[:] = sorted(asked, key=lambda one: order.get(one.nodeid, len(order)))


def environ_of(tree: Path) -> dict[str, str]:
    """Where processes find the sources of a copy of the tree."""
    return {
        "PYTHONPATH": os.pathsep.join([str(tree), str(tree / "tests")]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def ask(tree: Path, options: list[str]) -> None:
    """A forked process: pytest in a copy of the tree, whose output goes to a file there."""
    os.setsid()
    output = os.open(tree / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(tree)
    os.environ.update(environ_of(tree), ASKED=str(tree / "asked.json"))
    sys.path[:0], sys.dont_write_bytecode = [str(tree), str(tree / "tests")], True
    sys.exit(int(pytest.main([*PYTEST, *options])))


def asked(tree: Path, options: list[str], limit_s: float) -> tuple[int | None, str]:
    """Exit code and output of pytest; no code if it took too long and was ended with all that it
    had started.
    """
    work = multiprocessing.get_context("forkserver").Process(target=ask, args=(tree, options))
    work.start()
    work.join(limit_s)
    if late := work.is_alive():
        os.killpg(work.pid, signal.SIGKILL)
        work.join()
    return None if late else work.exitcode, (tree / "output.txt").read_text()


class Reach:
    """Which tests run which lines, and how long each takes."""

    def __init__(self, tree: Path, tests: list[str], jobs: int) -> None:
        texts = chain(
            [" ".join(tests).encode()], (file.read_bytes() for file in python_files(SOURCES))
        )
        folder = KEPT / hashlib.sha256(b"".join(texts)).hexdigest()
        modules = {str(path.relative_to(ROOT)): path.read_text() for path in python_files(tests)}
        kept = folder / "seconds.json"
        if not kept.exists():
            folder.mkdir(parents=True, exist_ok=True)
            options = [
                "-n",
                str(jobs),
                "--durations=0",
                "--durations-min=0",
                "--cov-context=test",
                "--cov-report=",
            ]
            options += [*(f"--cov={name}" for name in SOURCES), *tests]
            reported = subprocess.run(
                [sys.executable, "-m", "pytest", *PYTEST, *options],
                cwd=tree,
                capture_output=True,
                text=True,
                env={**os.environ, **environ_of(tree), "COVERAGE_FILE": str(folder / "coverage")},
            ).stdout
            seconds = Counter()
            for seconds_s, test in re.findall(
                r"^([\d.]+)s (?:setup|call|teardown) +(.*)$", reported, re.MULTILINE
            ):
                seconds[test] += float(seconds_s)
            failed = {
                test.split(" - ")[0]
                for test in re.findall(r"^(?:FAILED|ERROR) (.*)$", reported, re.MULTILINE)
            }
            kept.write_text(
                json.dumps(
                    [str(tree), {test: seconds[test] for test in seconds.keys() - failed}, modules]
                )
            )
            print(
                f"measured: {reported.splitlines()[-1]}; left out, for they fail:",
                *sorted(failed),
                flush=True,
            )
        root, self.seconds, measured = json.loads(kept.read_text())
        self.changed = [
            name
            for name, text in modules.items()
            if "/test_" in name and text != measured.get(name)
        ]
        data = CoverageData(str(folder / "coverage"))
        data.read()
        files = data.measured_files()
        self._tests = {
            str(Path(file).relative_to(root)): data.contexts_by_lineno(file) for file in files
        }

    def tests(self, fault: Fault) -> list[str]:
        """Those that run it, the quickest first; of a line that runs on import, those that run the
        file.
        """
        found = self._on(fault.file, fault.lines) or self._on(
            fault.file, self._tests.get(fault.file, {})
        )
        return sorted(
            (test for test in found if test.partition("::")[0] not in self.changed),
            key=self.seconds.get,
        )

    def is_here(self, fault: Fault) -> bool:
        """Whether its line can run on this machine: not all of the kernels' can."""
        return not fault.file.startswith("kernels/") or bool(self._on(fault.file, fault.lines))

    def _on(self, file: str, lines: Iterable[int]) -> set[str]:
        at = self._tests.get(file, {})
        return {
            name.partition("|")[0] for line in lines for name in at.get(line, ())
        } & self.seconds.keys()


def verdict(fault: Fault, reach: Reach, tree: Path) -> str:
    """`killed by ...`, `survived ...` or `no test runs it`. The tree is whole again afterwards."""
    if not (every := reach.tests(fault)) and not reach.changed:
        return "no test runs it"
    sums_s = [sum_s for sum_s in accumulate(map(reach.seconds.get, every)) if sum_s < BUDGET_S] or [
        BUDGET_S
    ]
    tests = every[: len(sums_s)]
    (tree / "asked.json").write_text(json.dumps([tests, reach.changed]))
    (tree / fault.file).write_bytes(fault.text)
    options = [
        "-x",
        "-n",
        "0",
        *sorted({*reach.changed, *(test.partition("::")[0] for test in tests)}),
    ]
    code, reported = asked(
        tree, options, 60 + 5 * sums_s[-1] + (5 * BUDGET_S if reach.changed else 0)
    )
    shutil.copy2(ROOT / fault.file, tree / fault.file)
    if code == 0:
        return f"survived {len(tests)} of {len(every)} tests"
    failed = [
        line.split(" - ")[0]
        for line in reported.splitlines()
        if line.startswith(("FAILED", "ERROR"))
    ]
    return (
        "killed by the time limit"
        if code is None
        else f"killed by {failed[0] if failed else f'exit code {code}'}"
    )


def copied(tree: Path) -> Path:
    """The files of the checkout, with links as links, so that it is itself never touched."""
    git = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
    for name in subprocess.run(
        git, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines():
        if os.path.lexists(ROOT / name):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    return tree


def main() -> None:
    """Judge every fault; a line for each, those that were not killed again at the end."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument(
        "--planted", action="store_true", help="those of tests/faults.toml in place of drawn ones"
    )
    parser.add_argument("--paths", nargs="+", default=SOURCES, help="sources that get faults")
    parser.add_argument(
        "--tests", nargs="+", default=["tests"], help="folders or files of tests that may be asked"
    )
    parser.add_argument("--jobs", type=int, default=2)
    chosen = parser.parse_args()
    multiprocessing.set_forkserver_preload(HEAVY)
    left, equal = [], {fault.meaning: fault.why for fault in listed("equal")}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(chosen.jobs) as pool:
        trees = [copied(Path(folder).resolve() / str(i)) for i in range(chosen.jobs)]
        reach = Reach(trees[0], chosen.tests, chosen.jobs)
        every = [
            fault
            for path in python_files(chosen.paths)
            for fault in faults_of(path)
            if reach.is_here(fault)
        ]
        drawn = random.Random(chosen.seed).sample(every, min(chosen.count, len(every)))
        faults = list(listed("fault")) if chosen.planted else drawn

        def judge(job: int) -> None:
            for fault in faults[job :: chosen.jobs]:
                same = equal.get(fault.meaning)
                reported = f"changes nothing: {same}" if same else verdict(fault, reach, trees[job])
                print(f"{fault}  [{reported}]", flush=True)
                if not reported.startswith("killed"):
                    left.append(f"  {fault}  [{reported}] {fault.why}")

        list(pool.map(judge, range(chosen.jobs)))
    same = sum(one.meaning in equal for one in faults)
    print(
        f"{len(faults) - len(left)} of {len(faults)} faults killed, {same} change nothing; not "
        f"killed:",
        *left,
        sep="\n",
    )


if __name__ == "__main__":
    main()
