"""Tab completion in bash, as the script that the command prints brings it about."""

import shutil
import subprocess
import sys

import pytest

from experiments.commands.completion import SCRIPT, candidates


@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("testbed re", ["report", "reproduce"]),
        ("testbed list ev", ["eviction"]),
        ("testbed run pol", ["policy="]),
        ("testbed run policy=pag", ["paged", "paged_2023"]),
        ("testbed run -m policy=paged,prefix_caching_", ["prefix_caching_v1"]),
        ("testbed run model=opt-13b +system=orca-m", ["orca-max"]),
        ("testbed run eviction@policy.eviction=s3", ["s3_fifo"]),
        ("testbed run gpu=l40", ["l40s"]),
        ("testbed reproduce moo", ["mooncake"]),
        ("testbed report x", []),
        ("testbed run arrivals.rate=", []),
    ],
)
def test_candidates(line, some):
    assert candidates(line) == some


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_with_the_script(tmp_path):
    (tmp_path / "testbed").write_text(f'#!/bin/sh\nexec {sys.executable} -m experiments.commands.cli "$@"\n')
    (tmp_path / "testbed").chmod(0o755)
    asks = 'COMP_LINE="testbed run policy=pag"; COMP_POINT=${#COMP_LINE}; _testbed; echo "${COMPREPLY[*]}"'
    script = f'PATH="{tmp_path}:$PATH"; {SCRIPT}\n{asks}'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["paged", "paged_2023"]


def test_the_command_prints_the_script(testbed):
    assert testbed("completion")[1].strip() == SCRIPT
