"""A compiled build gives what its sources give, to the byte, and refuses what they refuse."""

import json
import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from refusals import refuses

import testbed
from testbed.compiled import is_compiled, release
from testbed.engine.arrivals import ArrivalProcess
from testbed.memory.contiguous.reservations import ContiguousMax
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import MemoryPolicy

RUNS = {
    "swaps": ["preemption=swap", "arrivals.rate=4"],
    "beams": ["trace=alpaca", "arrivals.rate=20", "workload.num_seqs=4", "workload.beam=true"],
    "cache": [
        "trace=chat_histories",
        "model=llama-3-8b",
        "policy=prefix_caching",
        "eviction@policy.eviction=arc",
    ],
}


class Unfinished(MemoryPolicy):
    def release(self, seq):
        pass


@pytest.mark.parametrize("kind", [MemoryPolicy, Unfinished])
def test_class_without_a_required_method_is_refused(kind):
    refuses(r"Can't instantiate abstract class .*admit.*extend", kind, error=TypeError)


def test_unknown_constructor_argument_is_refused():
    class UserArrivals(ArrivalProcess):
        def times_ps(self, count, seed):
            return ()

    refuses("takes no arguments", UserArrivals, rate=3, error=TypeError)


def test_subclasses_of_one_base_are_distinguished():
    class UserPolicy(Paged):
        pass

    assert issubclass(UserPolicy, Paged)
    assert not issubclass(UserPolicy, ContiguousMax)
    assert not issubclass(Unfinished, Paged)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """The package without its extension modules, in a folder to put on the path."""
    folder = tmp_path_factory.mktemp("sources")
    extensions = shutil.ignore_patterns(
        "__pycache__", *(f"*{suffix}" for suffix in EXTENSION_SUFFIXES)
    )
    shutil.copytree(Path(testbed.__file__).parent, folder / "testbed", ignore=extensions)
    return folder


@pytest.mark.skipif(
    not is_compiled(), reason="this build is not compiled (TESTBED_COMPILE=1 pip install .)"
)
@pytest.mark.parametrize("name", RUNS)
def test_compiled_and_plain_runs_are_equal(name, sources, tmp_path):
    compiled = run(tmp_path / "compiled", RUNS[name], os.environ)
    plain = run(tmp_path / "plain", RUNS[name], {**os.environ, "PYTHONPATH": str(sources)})
    assert compiled.pop("version") == release() == f"{plain.pop('version')} (compiled)"
    assert compiled == plain


def run(folder, options, env):
    """What a run leaves, by file, apart from how long it took; and its version."""
    folder.mkdir()
    command = [sys.executable, "-m", "testbed.experiments.cli.main", "run", *options]
    command += ["arrivals.duration_s=60", "hydra.run.dir=out"]
    subprocess.run(
        command,
        cwd=folder,
        env={**env, "PYTHONSAFEPATH": "1"},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    written = {
        path.name: path.read_bytes()
        for path in (folder / "out").iterdir()
        if path.name != "timing.json"
    }
    written.pop("contents.json", None)  # digests, of a summary that names the build too
    summary = json.loads(written["summary.json"])
    version = summary["run"].pop("version")
    return {**written, "summary.json": summary, "version": version}
