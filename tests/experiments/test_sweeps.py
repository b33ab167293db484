"""A sweep runs every point once, also when it was stopped in the middle."""

import json
import signal
import subprocess
import sys
import time

SWEEP = (
    "run",
    "-m",
    "policy=contiguous_max,paged",
    "policy.block_size=32",
    "arrivals.duration_s=30",
    "outputs=summary",
)


def summaries(folder):
    return {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/summary.json")}


def test_a_restarted_sweep_runs_only_what_is_not_complete(testbed, tmp_path):
    assert testbed(*SWEEP)[0] == 0
    before = summaries(tmp_path)
    assert len(before) == 2
    lost, kept = before
    lost.unlink()
    command = [sys.executable, "-m", "experiments.commands.cli", *SWEEP, "hydra/launcher=joblib"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    after = summaries(tmp_path)
    assert done.stdout.count("complete already") == 1
    assert set(after) == set(before)
    assert after[kept] == before[kept]


def test_a_changed_input_file_is_another_point(testbed, tmp_path):
    sweep = ("run", "-m", "trace=csv", "trace.path=lengths.csv", "arrivals.duration_s=30", "outputs=summary")
    for length in (10, 20):
        (tmp_path / "lengths.csv").write_text(f"input_tokens,output_tokens\n5,{length}\n")
        assert testbed(*sweep)[0] == 0
    assert len(summaries(tmp_path)) == 2


def test_a_killed_sweep_loses_no_finished_point(tmp_path):
    rates = ",".join(str(rate / 10) for rate in range(10, 22))
    command = [
        sys.executable,
        "-m",
        "experiments.commands.cli",
        "run",
        "-m",
        f"arrivals.rate={rates}",
        "outputs=summary",
    ]
    sweep = subprocess.Popen([*command, "arrivals.duration_s=100"], cwd=tmp_path, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(summaries(tmp_path)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    sweep.send_signal(signal.SIGKILL)
    sweep.wait()
    finished = summaries(tmp_path)
    assert 2 <= len(finished) < 12
    assert all(json.loads(path.read_text())["requests"]["finished"] for path in finished)
    subprocess.run([*command, "arrivals.duration_s=100"], cwd=tmp_path, stdout=subprocess.DEVNULL, check=True)
    after = summaries(tmp_path)
    assert len(after) == 12
    assert all(after[path] == finished[path] for path in finished)
