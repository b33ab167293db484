"""Work of `testbed run` beside the run: calls of functions, and libraries that it imports."""

import re
import subprocess
import sys
from pathlib import Path

COUNT = Path(__file__).parents[1] / "helpers" / "count_functions.py"
MOST_CALLS = 3_200  # of which the event loop has about 800
MOST_FUNCTIONS = 281  # that run before it; as many do


def test_a_run_of_one_request_takes_few_functions_and_calls():
    """In a process of its own, since what a process keeps is not computed again."""
    done = subprocess.run([sys.executable, COUNT], capture_output=True, text=True, check=True)
    calls = int(re.search(r"([\d,]+) calls", done.stdout)[1].replace(",", ""))
    assert calls <= MOST_CALLS, done.stdout
    functions = int(re.search(r"before the event loop: (\d+) functions", done.stdout)[1])
    assert functions <= MOST_FUNCTIONS, done.stdout


def test_neither_a_simulation_nor_a_run_imports_what_it_does_not_use(tmp_path):
    """Checks and servers; then libraries of figures and tables, and the reader of models."""
    libraries = {"matplotlib", "pandas", "jinja2", "joblib", "torch", "numpy.ma", "tomllib"}
    unused = {*libraries, "testbed.core.hf_config"}
    code = (
        "import sys, testbed; testbed.simulate('arrivals.duration_s=1');"
        "assert not {'testbed.checks.checking', 'testbed.vllm.server', 'testbed.sglang'}"
        "& set(sys.modules);"
        "from testbed.experiments.cli.main import main;"
        "assert main(['run', 'arrivals.duration_s=1']) == 0;"
        f"assert not {unused} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)
