"""A compiled simulator gives what the sources give, lets plug-ins extend its classes, and names runs alike."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import testbed
from experiments.compiled.build import build, remove
from testbed.compiled import FOLDER

ROOT = Path(testbed.__file__).parents[1]
PROGRAM = """
import json, sys
sys.path.insert(0, "tests/golden")
import test_golden_runs as golden
import testbed.sim.engine
from experiments.runs.identity import simulator_hash
from testbed.memory.paged.paged import Paged
class Mine(Paged):
    def admit(self, seqs, num_tokens):
        Mine.asked = True
        return super().admit(seqs, num_tokens)
rows = {name: golden.totals(*golden.CASES[name]) for name in ("paged beam 4", "prefix caching")}
rows["plug-in"] = golden.totals(Mine, *golden.CASES["paged chunked"][1:])
assert Mine.asked and rows["plug-in"] == golden.totals(*golden.CASES["paged chunked"])
compiled = testbed.sim.engine.__spec__.origin.endswith((".so", ".pyd"))
print(json.dumps({"rows": rows, "hash": simulator_hash(), "compiled": compiled}))
"""


def told(tree):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow  # mypyc and the C compiler take minutes
def test_compiled_and_plain_runs_are_equal(tmp_path):
    for name in ("testbed", "traces", "experiments", "tests/golden"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns(".compiled", "__pycache__"))
    folder = tmp_path / Path(FOLDER).relative_to(ROOT)
    plain = told(tmp_path)
    assert not plain["compiled"]
    build(tmp_path, folder)
    compiled = told(tmp_path)
    assert compiled["compiled"]
    assert (compiled["rows"], compiled["hash"]) == (plain["rows"], plain["hash"])
    assert remove(folder)
    assert not told(tmp_path)["compiled"]
