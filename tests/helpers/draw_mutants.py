"""Whether the tests notice a drawn sample of mutants: `python tests/helpers/draw_mutants.py`.

mutmut (pyproject.toml has its settings) makes the mutants of the simulator's core, records once
which test calls which function, and asks of each mutant the tests that call its function, up to the
first that fails. A sample is drawn by a seed from all mutants but those that change nothing but a
text or an annotation. The exit code is 1 where less than 90% are killed.
"""

import argparse
import ast
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from mutmut.configuration import config
from mutmut.mutation.file_mutation import mutate_file_contents

MUTANT = re.compile(r"(?P<function>.+__mutmut_)(?P<number>\d+|orig)")
KILLED = {"killed", "timeout", "suspicious", "segfault"}
GOAL = 0.9


def main() -> int:
    """Draw, run, and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--only", default="*", help="pattern of paths, as testbed/memory/*")
    parser.add_argument("--jobs", type=int, default=2, help="mutants tested at once")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    options = parser.parse_args()
    every = sorted(name for path in mutated_files(options.only) for name in mutants_of(path))
    drawn = random.Random(options.seed).sample(every, min(options.count, len(every)))
    print(f"{len(drawn)} of {len(every)} mutants, drawn by seed {options.seed}", flush=True)
    if options.list:
        print(*drawn, sep="\n")
        return 0
    subprocess.run(mutmut("run", "--max-children", str(options.jobs), *drawn), check=True)
    return report(drawn)


def mutated_files(pattern: str) -> Iterator[Path]:
    """The files that the settings name, and that the pattern matches."""
    for path in sorted(Path("testbed").rglob("*.py")):
        if config().should_mutate(path) and fnmatch(str(path), pattern):
            yield path


def mutants_of(path: Path) -> Iterator[str]:
    """The names of a file's mutants, without those of texts and annotations alone."""
    mutated = mutate_file_contents(str(path), path.read_text())
    functions = dict[str, str]()
    for node in ast.walk(ast.parse(mutated.code)):
        if isinstance(node, ast.FunctionDef) and MUTANT.fullmatch(name := node.name):
            functions[name] = essence(node)
    module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    for name, code in functions.items():
        function, number = MUTANT.fullmatch(name).group("function", "number")
        if number != "orig" and code != functions[f"{function}orig"]:
            yield f"{module}.{name}"


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


def essence(function: ast.FunctionDef) -> str:
    """A function's code without name, texts and annotations."""
    function.name, function.returns = "", None
    return ast.dump(Essence().visit(function))


def report(drawn: list[str]) -> int:
    """Print how many mutants were killed, and the diffs of the others."""
    done = subprocess.run(mutmut("results", "--all", "true"), capture_output=True, text=True)
    lines = (line.strip().rsplit(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    status = {name: how for name, how in lines if name in set(drawn)}
    print(dict(Counter(status.values())))
    survivors = [name for name in drawn if status[name] not in KILLED]
    for name in survivors:
        shown = subprocess.run(mutmut("show", name), capture_output=True, text=True)
        print(shown.stdout)
    share = 1 - len(survivors) / len(drawn)
    print(f"{share:.1%} killed; the goal is {GOAL:.0%}")
    return int(share < GOAL)


def mutmut(*arguments: str) -> list[str]:
    """A command line of mutmut."""
    return [sys.executable, "-m", "mutmut", *arguments]


if __name__ == "__main__":
    sys.exit(main())
