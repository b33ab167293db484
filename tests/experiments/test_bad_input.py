"""Bad input gives one line that names the culprit, exit code 2, no traceback and no result."""

import gzip
import resource
import subprocess
import sys

import pytest

BAD = {
    "unknown policy": (["policy=foo"], "policy/foo"),
    "unknown parameter": (["policy.nope=3"], "policy.nope"),
    "not an override": (["foo"], "foo"),
    "unknown option": (["--foo"], "--foo"),
    "zero rate": (["arrivals.rate=0"], "arrivals.rate is 0"),
    "negative rate": (["arrivals.rate=-1"], "arrivals.rate is -1"),
    "not a number": (["arrivals.rate=abc"], "arrivals.rate is 'abc'"),
    "infinite duration": (["arrivals.duration_s=inf"], "arrivals.duration_s is inf"),
    "block size out of range": (["policy.block_size=300"], "block_size is 300"),
    "fraction of a token": (["policy.block_size=1.5"], "policy.block_size is 1.5"),
    "bad seed": (["seed=x"], "seed is 'x'"),
    "bad window": (["window_s=3"], "window_s is 3"),
    "no file given": (["trace=csv"], "trace.path"),
    "no such file": (["trace=csv", "trace.path=missing.csv"], "missing.csv"),
    "missing column": (["trace=csv", "trace.path=columns.csv"], "input_tokens"),
    "a column twice": (["trace=csv", "trace.path=twice.csv"], "two columns are named 'input_tokens'"),
    "zero length": (["trace=csv", "trace.path=zero.csv"], "zero.csv, line 3"),
    "negative length": (["trace=csv", "trace.path=negative.csv"], "negative.csv, line 2"),
    "truncated gzip": (["trace=csv", "trace.path=cut.csv.gz"], "cut.csv.gz"),
    "no time stamps": (["arrivals=replay"], "arrivals=replay"),
    "no such class": (["policy=custom", "policy._target_=no_module.Policy"], "no_module"),
    "no class given": (["policy=custom"], "policy._target_"),
    "model too large": (["model=opt-175b", "server=a100-40gb-x1"], "opt-175b"),
}


@pytest.fixture
def files(tmp_path):
    (tmp_path / "columns.csv").write_text("a,b\n1,2\n")
    (tmp_path / "twice.csv").write_text("input_tokens,output_tokens,input_tokens\n1,2,3\n")
    (tmp_path / "zero.csv").write_text("input_tokens,output_tokens\n1,2\n1,0\n")
    (tmp_path / "negative.csv").write_text("input_tokens,output_tokens\n-4,2\n")
    rows = "\n".join(f"{i},{7 * i % 90 + 1}" for i in range(1, 2000))
    whole = gzip.compress(f"input_tokens,output_tokens\n{rows}\n".encode())
    (tmp_path / "cut.csv.gz").write_bytes(whole[: len(whole) // 2])


def one_line(code, error, culprit):
    assert code == 2
    assert error.endswith("\n")
    assert error.count("\n") == 1, error
    assert culprit in error
    assert "Traceback" not in error


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("name", BAD)
def test_run(testbed, tmp_path, name):
    arguments, culprit = BAD[name]
    code, _, error = testbed("run", *arguments, "hydra.run.dir=out")
    one_line(code, error, culprit)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (["reproduce", "fig99"], "fig99"),
        (["reproduce"], "FIGURE"),
        (["reproduce", "table1", "--lengths", "none.csv"], "none.csv"),
        (["reproduce", "table1", "--lengths", "foo=none.csv"], "foo"),
        (["reproduce", "table1", "--jobs", "0"], "--jobs"),
        (["list", "foo"], "foo"),
        (["check", "no_module:Policy"], "no_module"),
        (["frobnicate"], "frobnicate"),
    ],
)
def test_other_commands(testbed, arguments, culprit):
    code, _, error = testbed(*arguments)
    one_line(code, error, culprit)


def test_debug_shows_the_traceback(testbed):
    with pytest.raises(Exception, match=r"arrivals.rate is 0"):
        testbed("run", "--debug", "arrivals.rate=0")


def test_a_sweep_names_the_culprit_from_a_worker_process(testbed):
    code, _, error = testbed("run", "-m", "arrivals.rate=0", "outputs=summary", "hydra/launcher=joblib")
    one_line(code, error, "arrivals.rate is 0")


def limit_file_size():
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))


def test_a_full_disk_leaves_no_half_written_result(tmp_path):
    command = [sys.executable, "-m", "experiments.commands.cli", "run", "arrivals.duration_s=600", "hydra.run.dir=out"]
    done = subprocess.run(
        command, cwd=tmp_path, preexec_fn=limit_file_size, capture_output=True, text=True, check=False
    )
    one_line(done.returncode, done.stderr, "out/requests.csv")
    assert not list(tmp_path.iterdir())
