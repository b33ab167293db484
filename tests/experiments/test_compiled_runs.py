"""A compiled simulator gives what its sources give, extends to plug-ins and worker processes, and names runs alike."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import testbed
from testbed.compiled import FOLDER, MANIFEST

ROOT = Path(testbed.__file__).parents[1]
PROGRAM = """
import json, multiprocessing, sys
sys.path.insert(0, "tests/golden")
import test_golden_runs as golden
from experiments.runs.identity import simulator_hash
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import MemoryPolicy
class Mine(Paged):
    def admit(self, seqs, num_tokens):
        Mine.asked = True
        return super().admit(seqs, num_tokens)
class Unfinished(MemoryPolicy):
    def release(self, seq):
        pass
def refusal(kind):
    try:
        return str(kind())
    except TypeError as error:
        return str(error)
def origin():
    import testbed.sim.engine
    return testbed.sim.engine.__spec__.origin
if __name__ == "__main__":
    rows = {name: golden.totals(*golden.CASES[name]) for name in ("paged beam 4", "prefix caching")}
    rows["plug-in"] = golden.totals(Mine, *golden.CASES["paged chunked"][1:])
    assert Mine.asked and rows["plug-in"] == golden.totals(*golden.CASES["paged chunked"])
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        origins = [origin(), pool.apply(origin)]
    told = {"rows": rows, "hash": simulator_hash(), "abstract": [refusal(MemoryPolicy), refusal(Unfinished)]}
    print(json.dumps([told, [path.endswith((".so", ".pyd")) for path in origins]]))
"""


def told(tree):
    (tree / "program.py").write_text(PROGRAM)
    command = [sys.executable, "program.py"]
    env = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(not Path(FOLDER, MANIFEST).exists(), reason="there is no compiled build: testbed compile")
def test_compiled_and_plain_runs_are_equal(tmp_path):
    for name in ("testbed", "traces", "experiments", "tests/golden"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns(".compiled", "__pycache__"))
    plain, none = told(tmp_path)
    shutil.copytree(FOLDER, tmp_path / Path(FOLDER).relative_to(ROOT))
    compiled, both = told(tmp_path)
    assert (none, both) == ([False, False], [True, True])
    assert compiled == plain
    assert "abstract methods admit" in plain["abstract"][1]
