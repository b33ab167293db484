"""A working folder with wrong files in it, and a call of the command that must refuse them in one
line. Classes that cannot be used are in own_parts.py.
"""

import shlex

import pytest

LENGTHS = "input_tokens,output_tokens\n"
TIMED = "input_tokens,output_tokens,arrival_s\n1,2,0\n1,2,{}\n"
FILES = {
    "mine/model/odd.yaml": "a: [\n",
    "lengths.csv": f"{LENGTHS}3,4\n",
    "timed.csv": TIMED.format(1000),
    "late.csv": TIMED.format(10000000),
    "searches.csv": "request,step,parent,child\n0,2,0,1\n",
    "log.csv": "input_tokens,output_tokens,arrival_s,first_token_s,finish_s\n9,3,0,0.1,0.2\n",
    "syntax_mistake.py": "def Policy(:\n",
    "not_a_policy.py": "class Policy:\n    def __init__(self, pool): pass\n",
    "exits.py": "import sys; sys.exit(0)",
    "raises.py": "raise RuntimeError('boom')",
}


@pytest.fixture
def wrong_files(tmp_path):
    """A working folder with things that are not what they are taken for."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def refused(testbed, wrong_files):
    """Call the command, which must refuse, and give its one line."""

    def call(line, expected=2):
        before = left(wrong_files)
        code, output, error = testbed(*shlex.split(line))
        check_one_line(code, error, expected)
        assert "Traceback" not in output
        assert left(wrong_files) == before
        return error

    return call


def left(folder):
    """Every file but bytecode and Hydra's own note of a sweep."""
    files = {path for path in folder.rglob("*") if path.is_file() and path.name != "multirun.yaml"}
    return {path for path in files if "__pycache__" not in path.parts}


def check_one_line(code, error, expected=2):
    assert code == expected
    assert error.endswith("\n")
    assert error.count("\n") == 1, error
    assert "Traceback" not in error
