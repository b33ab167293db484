"""Runs the tests on a drawn sample of mutants: `python tests/helpers/draw_mutants.py`.

mutmut makes the mutants of the simulator's packages; a sample is drawn by a seed from all but those
that change nothing but a text or an annotation. Each is tried in a copy of the tree that has one
file changed: the default suite runs up to the first failure, the folder of the mutated package
first. Outcomes are kept in a file, from which the same line goes on. The exit code is 1 if less
than the goal are killed.
"""

import argparse
import ast
import difflib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from threading import Lock

from mutmut.mutation.file_mutation import create_mutations

PACKAGES = ("memory", "sched", "engine", "cost", "fleet", "speculation", "run")
GOAL = 0.92
FIRST = ("golden", "property", "engine", "sched", "memory")  # of the other folders with tests
PYTEST = ("-m", "pytest", "-o", "addopts=", "-q", "-m", "not slow", "-p", "no:cacheprovider")
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
SURVIVED = "survived"
# The finder of an editable installation would import the sources that were installed
OF_THE_COPY = """
import sys
kinds = {finder: getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path}
sys.meta_path[:] = [finder for finder, kind in kinds.items() if kind != "RedirectingFinder"]
"""


@dataclass(frozen=True)
class Mutant:
    """A file of the tree and its changed code; `number` counts the file's mutants."""

    path: Path
    number: int
    code: str

    @property
    def name(self) -> str:
        """PATH:NUMBER."""
        return f"{self.path}:{self.number}"

    @property
    def diff(self) -> str:
        """The lines that differ."""
        both = (text.splitlines() for text in (self.path.read_text(), self.code))
        lines = difflib.unified_diff(*both, str(self.path), str(self.path), lineterm="", n=1)
        return "\n".join(lines)


def main() -> int:
    """Draw, run, and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--only", default="*", help="pattern of paths, as testbed/memory/*")
    parser.add_argument("--jobs", type=int, default=2, help="mutants tried at once")
    parser.add_argument("--limit-s", type=float, default=1800, help="of one trial")
    parser.add_argument("--kept", type=Path, default=Path("mutants.json"), help="outcomes")
    parser.add_argument("--list", action="store_true", help="print the mutants and stop")
    options = parser.parse_args()
    mutants = drawn(options.seed, options.count, options.only)
    if options.list:
        print(*(mutant.diff for mutant in mutants), sep="\n\n")
        return 0
    trials = Trials(options.kept, options.limit_s)
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = list(pool.map(trials.outcome, mutants))
    return report(mutants, outcomes)


def drawn(seed: int, count: int, pattern: str) -> list[Mutant]:
    """A sample of the mutants of the files that the pattern matches."""
    paths = [
        path
        for package in PACKAGES
        for path in sorted(Path("testbed", package).rglob("*.py"))
        if fnmatch(str(path), pattern)
    ]
    made = {path: create_mutations(str(path), path.read_text()) for path in paths}
    places = [
        (path, number)
        for path in paths
        for number, changed in enumerate(made[path][1])
        if changed.contained_by_top_level_function is not None
    ]
    random.Random(seed).shuffle(places)
    mutants = list[Mutant]()
    for path, number in places:
        if len(mutants) == count:
            break
        module, mutations, *_ = made[path]
        changed = mutations[number]
        code = module.deep_replace(changed.original_node, changed.mutated_node).code
        if essence(code) not in (None, essence(module.code)):
            mutants.append(Mutant(path, number, code))
    return mutants


class Essence(ast.NodeTransformer):
    """Leaves out what the results of a function hardly depend on: texts and annotations."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant("") if isinstance(node.value, str) else node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(node.arg)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node = self.generic_visit(node)
        node.annotation = ast.Constant("")
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node = self.generic_visit(node)
        node.returns = None
        return node


def essence(code: str) -> str | None:
    """A file's code without texts and annotations; None if it is no Python."""
    try:
        return ast.dump(Essence().visit(ast.parse(code)))
    except SyntaxError:
        return None


class Trials:
    """Runs the suite on mutants, and keeps what came out."""

    def __init__(self, kept: Path, limit_s: float) -> None:
        self._kept, self._limit_s, self._lock = kept, limit_s, Lock()
        self._outcomes = json.loads(kept.read_text()) if kept.exists() else {}

    def outcome(self, mutant: Mutant) -> str:
        """The test that fails first, "limit of time", or that the mutant survived."""
        if mutant.name not in self._outcomes:
            outcome = tried(mutant, self._limit_s)
            with self._lock:
                self._outcomes[mutant.name] = outcome
                self._kept.write_text(json.dumps(self._outcomes, indent=1))
                print(f"{mutant.name}: {outcome}", flush=True)
        return self._outcomes[mutant.name]


def tried(mutant: Mutant, limit_s: float) -> str:
    """Run the suite in a copy of the tree that has the mutant."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        copy_tree(tree)
        (tree / mutant.path).write_text(mutant.code)
        Path(folder, "sitecustomize.py").write_text(OF_THE_COPY)
        check_imported(tree)
        code, output = ended(tree, folders(mutant.path.parts[1]), limit_s)
    if code is None:
        return "limit of time"
    failed = FAILED.search(output)
    return SURVIVED if code == 0 else failed.group(1) if failed else f"exit code {code}"


def environment(tree: Path) -> dict[str, str]:
    """The environment of a process that imports the tree."""
    return os.environ | ONE_THREAD | {"PYTHONPATH": f"{tree}{os.pathsep}{tree.parent}"}


def check_imported(tree: Path) -> None:
    """Raise RuntimeError if a process there imports other sources, whose tests would all pass."""
    show = [sys.executable, "-c", "import testbed; print(testbed.__file__)"]
    imported = subprocess.check_output(show, cwd=tree, env=environment(tree), text=True)
    if not Path(imported.strip()).is_relative_to(tree):
        raise RuntimeError(f"{imported.strip()} is imported in place of the mutant")


def copy_tree(tree: Path) -> None:
    """Copy the files that git knows, and those beside them that it does not ignore."""
    listed = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
    for name in subprocess.check_output(listed, text=True).splitlines():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        if Path(name).exists():
            shutil.copy2(name, tree / name, follow_symlinks=False)


def folders(package: str) -> Iterator[str]:
    """The folders with tests, those of the package first."""
    every = [path.name for path in Path("tests").iterdir() if any(path.glob("test_*.py"))]
    order = [package, *FIRST]
    ranked = sorted(every, key=lambda name: (order.index(name) if name in order else 99, name))
    return (f"tests/{name}" for name in ranked)


def ended(tree: Path, tests: Iterator[str], limit_s: float) -> tuple[int | None, str]:
    """The exit code and the output of pytest in a tree; None for one that is out of time."""
    running = subprocess.Popen(
        [sys.executable, *PYTEST, "-x", "--tb=line", "--hypothesis-seed=0", *tests],
        cwd=tree,
        env=environment(tree),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = running.communicate(timeout=limit_s)
        return running.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        return None, running.communicate()[0]


def report(mutants: list[Mutant], outcomes: list[str]) -> int:
    """Print how many mutants were killed, and the diffs of the others."""
    survivors = [
        mutant for mutant, outcome in zip(mutants, outcomes, strict=True) if outcome == SURVIVED
    ]
    print(*(survivor.diff for survivor in survivors), sep="\n\n")
    share = 1 - len(survivors) / len(mutants)
    print(f"{share:.1%} of {len(mutants)} killed; the goal is {GOAL:.0%}")
    return int(share < GOAL)


if __name__ == "__main__":
    sys.exit(main())
