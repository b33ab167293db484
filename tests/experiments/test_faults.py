"""Files that cannot be opened, written, renamed or synchronized, and folders that cannot be made,
at any call of any command: it ends in one line and exit code 2, or in the answer without the fault;
what it leaves is whole, and the next call continues.
"""

import gc
import os
import re
import shutil
import subprocess
import sys
from itertools import count

import pytest
from faults import ANSWERED, ERRORS, KINDS, REFUSED, Faults, Outcomes, contents, injected
from wrong_files import check_one_line

from testbed.experiments.runs.whole_files import MARK

SHORT = ("model=opt-13b", "trace=random", "trace.input_len=64", "trace.output_len=4")
LOAD = (*SHORT, "arrivals.duration_s=2", "arrivals.rate=2")
SEARCH = ("slo.ttft_s=1", "arrivals.duration_s=20", "--precision", "0.5")
COMMANDS = {
    "run": ("run", *LOAD, "outputs=tables"),
    "run -m": ("run", "-m", *LOAD, "policy=paged,contiguous_max", "outputs=summary"),
    "plan": ("plan", *LOAD, "gpu=a100-40gb,a10g", "slo.ttft_s=1", "seed=0"),
    "capacity": ("capacity", *SHORT, *SEARCH),
    "reproduce": ("reproduce", "fig1", "--jobs", "1"),
    "hits": ("hits", *LOAD, "--sizes", "10,20", "--csv", "hits.csv"),
    "compare": ("compare", "kept/one", "kept/two"),
    "report": ("report", "kept"),
}
CHANGING = ("timing.json", "multirun.yaml")  # whose contents differ from call to call
OF_COMPLETE_POINTS = "runs/sweep.csv"  # a sweep that fails lists those that are complete
PROGRESS = re.compile(r"\d+ of \d+(, .* runs/s)?(, about .* left)?\n")
MOST_FAULTS = 40  # of a command; some make fewer calls


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Two finished runs, for the commands that read some."""
    from testbed.experiments.cli.main import main

    folder = tmp_path_factory.mktemp("kept")
    for name, policy in (("one", "paged"), ("two", "contiguous_max")):
        words = (*LOAD, f"policy={policy}", "outputs=tables", f"hydra.run.dir={folder / name}")
        assert main(["run", *words]) == 0
    return folder


@pytest.fixture
def place(testbed, tmp_path, kept):
    """Call a command with faults in a new folder: the code, output and errors, and the folder."""
    numbers = count()

    def call(words, faults_of=None, folder=None):
        if folder is None:
            folder = tmp_path / f"place{next(numbers)}"
            shutil.copytree(kept, folder / "kept")
        os.chdir(folder)
        faults = Faults(folder) if faults_of is None else faults_of(folder)
        with injected(faults):
            code, output, errors = testbed(*words)
        output = PROGRESS.sub("", output.replace(str(folder), "."))
        output = output.replace("complete already", "done")  # of a point that a call before made
        return code, output, errors, folder, faults.counts

    return call


def settled(folder):
    """The files of a command, by path, without parts that differ from call to call, and without a
    temporary folder that could not be opened: it is removed once its process has ended.
    """
    return {
        path: content
        for path, content in contents(folder).items()
        if not (path.endswith(CHANGING) or path.startswith("kept/") or MARK in path)
    }


def check_fault(place, words, undisturbed, kind, position, *, lasts, error):
    """One fault: what the command says, what it leaves, and how the next call goes on. The outcome
    is its name.
    """
    whole_output, whole_files = undisturbed

    def fault(folder):
        return Faults(folder, kind, position, lasts=lasts, error=error)

    code, output, errors, folder, _ = place(words, fault)
    left, refusal = settled(folder), REFUSED if code else ANSWERED
    assert "Traceback" not in errors
    if code == 0:
        assert output == whole_output
    else:
        check_one_line(code, errors.splitlines(keepends=True)[-1])
    for path, content in left.items():
        if code and path == OF_COMPLETE_POINTS:
            continue
        assert path in whole_files, f"{path} is left behind"
        assert content == whole_files[path], f"{path} is half-written"
    code, output, _, folder, _ = place(words, folder=folder)
    assert code == 0
    assert output == whole_output or left == whole_files  # it says that the run is complete
    assert settled(folder) == whole_files
    return refusal


@pytest.fixture(scope="module")
def answers():
    """What `undisturbed` has found, by command."""
    return {}


@pytest.fixture
def undisturbed(place, answers):
    """The output and the files of a command without faults, and its calls of each kind."""

    def call(words):
        if words not in answers:
            code, output, _, folder, numbers = place(words)
            assert code == 0
            answers[words] = (output, settled(folder)), {kind: numbers[kind] for kind in KINDS}
        return answers[words]

    return call


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", ["run", "hits"])
def test_a_fault_of_each_kind_is_one_line(place, undisturbed, command, kind):
    words = COMMANDS[command]
    expected, numbers = undisturbed(words)
    if numbers[kind]:
        position = numbers[kind] // 2
        check_fault(place, words, expected, kind, position, lasts=True, error=ERRORS[0])


def positions_of(numbers):
    """The calls of each kind that fail, evenly among all of it. Kinds with few calls leave their
    share to the others.
    """
    left, positions = MOST_FAULTS, {}
    for place_of_kind, kind in enumerate(sorted(numbers, key=numbers.get)):
        number = numbers[kind]
        count_of_kind = min(number, left // (len(numbers) - place_of_kind))
        step = (number - 1) / max(count_of_kind - 1, 1)
        positions[kind] = [round(n * step) for n in range(count_of_kind)]
        left -= count_of_kind
    return positions


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_300_faults_are_one_line_each(place, undisturbed, command):
    """At every call of a command, or evenly among its calls. `-rP` shows the outcomes."""
    words, broken, outcomes = COMMANDS[command], [], Outcomes(command)
    expected, numbers = undisturbed(words)
    for kind, positions in positions_of(numbers).items():
        number = numbers[kind]
        for place_of_fault, position in enumerate(positions):
            options = {"lasts": place_of_fault % 2 == 0, "error": ERRORS[place_of_fault % 3]}
            try:
                outcome = check_fault(place, words, expected, kind, position, **options)
                outcomes.add(kind, outcome)
            except AssertionError as error:
                broken.append(f"{kind} {position} of {number} {options}: {str(error)[:300]}")
            gc.collect()  # the whole suite seldom does, and each call leaves cycles of large arrays
    outcomes.show(broken)
    assert not broken, "\n".join(broken)


WITH_MEMORY = """
import resource, sys
import hydra, numpy.random, pandas, yaml
from testbed.experiments.cli import app, main
from testbed.run import simulate
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (int(sys.argv[1]) << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
sys.exit(main.main(sys.argv[2:]))
"""


def called_with_memory(words, folder, mib):
    """A command in a process that may take so much memory beyond what its modules have."""
    return subprocess.run(
        [sys.executable, "-c", WITH_MEMORY, str(mib), *words],
        cwd=folder,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


def check_limited_memory(words, folder, limits):
    """Below some limit a command ends in one line, and above it answers; the next call continues
    what one has left.
    """
    codes = []
    for mib in limits:
        place = folder / str(mib)
        place.mkdir()
        done = called_with_memory(words, place, mib)
        codes.append(done.returncode)
        assert "Traceback" not in done.stderr
        if done.returncode:
            check_one_line(done.returncode, done.stderr.splitlines(keepends=True)[-1])
    assert codes[-1] == 0
    assert codes[0] == 2
    smallest = folder / str(limits[0])
    assert called_with_memory(words, smallest, limits[-1]).returncode == 0
    assert settled(smallest) == settled(place)
    return codes


def test_a_workload_that_memory_cannot_hold_is_one_line(tmp_path):
    words = ("run", *SHORT, "arrivals.duration_s=20", "arrivals.rate=1e9")
    done = called_with_memory(words, tmp_path, 200)
    check_one_line(done.returncode, done.stderr)
    assert "arrivals: so many requests" in done.stderr
    assert called_with_memory(("run", *LOAD, "outputs=tables"), tmp_path, 200).returncode == 0
    assert settled(tmp_path)


@pytest.mark.slow  # small limits reach every import, and some libraries end the process themselves
@pytest.mark.parametrize("command", ["run", "run -m", "capacity", "hits"])
def test_any_limit_of_memory_is_one_line_or_the_answer(tmp_path, command):
    outcomes = Outcomes(command)
    for code in check_limited_memory(COMMANDS[command], tmp_path, range(4, 130, 6)):
        outcomes.add("memory", REFUSED if code else ANSWERED)
    outcomes.show()
