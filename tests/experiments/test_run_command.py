"""`testbed run`: its screen, the folder that it leaves, the same run once more, another one in the
same folder; what a summary says of policies and limits.
"""

import csv
import json
import re
import shutil
import sys
from contextlib import chdir
from pathlib import Path
from unittest import mock

import pytest
from refusals import check_words
from tiny_run import LENGTHS, tiny_overrides

from testbed.experiments.cli.main import main

EXAMPLES = Path(__file__).parents[2] / "experiments" / "examples"
FOLDER = "hydra.run.dir=out"


def made_in(folder, *words):
    """Run the tiny run with these words in a folder."""
    with chdir(folder), mock.patch.object(sys, "argv", sys.argv):
        assert main(["run", *tiny_overrides(Path("tiny.csv"), blocks=10), *words]) == 0


@pytest.fixture(scope="module")
def full_run(tmp_path_factory):
    """The folder of the tiny run with all its tables, made once."""
    folder = tmp_path_factory.mktemp("full")
    made_in(folder, FOLDER, "slo.ttft_s=0.1")
    return folder / "out"


@pytest.fixture
def full(testbed, tiny, full_run, tmp_path):
    """A copy in the folder of the test."""
    return shutil.copytree(full_run, tmp_path / "out")


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_screen_of_a_run(testbed, tiny, snapshot):
    """The one snapshot of a run's screen."""
    assert testbed.done("run", *tiny, FOLDER, "slo.ttft_s=0.1") == snapshot


def test_a_run_leaves_its_config_tables_summary_time_and_the_meaning_of_columns(full):
    assert {path.name for path in full.iterdir()} == {
        "config.yaml",
        "inputs.json",
        "requests.csv",
        "iterations.csv",
        "summary.json",
        "timing.json",
        "COLUMNS.md",
    }


def test_table_of_requests_has_the_requests_of_the_trace(full):
    wanted = [line.split(",") for line in LENGTHS.splitlines()[1:]]
    rows = table(full / "requests.csv")
    assert [(row["prompt_len"], row["output_len"]) for row in rows] == [
        (prompt, output) for prompt, output, _ in wanted
    ]
    assert [float(row["arrival_s"]) for row in rows] == [float(arrival) for *_, arrival in wanted]


def test_summary_counts_what_the_tables_list(full):
    totals, rows = summary(full), table(full / "requests.csv")
    assert totals["requests"] == {"arrived": 7, "finished": 7, "rejected": 0}
    for kind in ("swap", "recompute"):
        assert sum(int(row[f"num_{kind}s"]) for row in rows) == totals["preemptions"][kind]
    tokens = sum(int(row["output_len"]) for row in rows)
    assert totals["throughput"]["output_tokens_per_s"] == pytest.approx(
        tokens / totals["simulated_s"]
    )
    inside = sum(float(row["ttft_s"]) <= 0.1 for row in rows) / len(rows)
    assert totals["slo"]["share_inside"] == pytest.approx(inside)


def test_shares_of_the_pool_add_up_to_one(full):
    shares = summary(full)["memory"]
    for mean in ("per_iteration", "over_time"):
        assert sum(share[mean] for share in shares.values()) == pytest.approx(1)


def test_config_of_the_folder_runs_again_to_the_same_tables(testbed, tiny, full, tmp_path):
    testbed.done("run", *tiny, "slo.ttft_s=0.1", "hydra.run.dir=again")
    for name in ("config.yaml", "requests.csv", "iterations.csv", "summary.json"):
        assert (tmp_path / "again" / name).read_bytes() == (full / name).read_bytes(), name


def test_a_complete_run_is_shown_and_not_repeated(testbed, tiny, full):
    before = {path: path.stat().st_mtime_ns for path in full.iterdir()}
    output = testbed.done("run", *tiny, FOLDER, "slo.ttft_s=0.1")
    check_words(("complete already", "--again", "7 arrived, 7 finished"), output)
    assert {path: path.stat().st_mtime_ns for path in full.iterdir()} == before


def test_another_run_is_not_written_over_a_folder(testbed, tiny, full):
    before = summary(full)
    error = testbed.refused("run", *tiny, FOLDER, "seed=1")
    check_words(("out", "has another run", "--again", "hydra.run.dir"), error)
    assert summary(full) == before


def test_another_run_replaces_the_folder_when_asked_to(testbed, tiny, full):
    testbed.done("run", *tiny, FOLDER, "--again", "outputs=summary")
    names = {path.name for path in full.iterdir()}
    assert names == {"config.yaml", "inputs.json", "summary.json", "timing.json"}
    assert summary(full)["slo"]["ttft_s"] is None


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(lambda text: text.replace("seed: 0", "seed: 1"), id="another seed"),
        pytest.param(lambda text: "a: [1", id="no YAML"),
        pytest.param(lambda text: "model: 1", id="no configuration"),
    ],
)
def test_an_edited_config_of_a_run_is_refused(testbed, full, edit):
    config = full / "config.yaml"
    config.write_text(edit(config.read_text()))
    check_words(("config.yaml",), testbed.refused("show", "memory", "out"))


@pytest.mark.parametrize("text", ["[]", "{", '{"run": {}}'])
def test_a_run_whose_summary_is_spoilt_is_run_again(testbed, tiny, full, text):
    before = summary(full)
    (full / "summary.json").write_text(text)
    code, output, _ = testbed("run", *tiny, FOLDER, "slo.ttft_s=0.1", "--again")
    assert code == 0
    assert "complete already" not in output
    assert summary(full) == before


def test_a_run_without_a_folder_is_named_by_its_id(testbed, tiny, tmp_path):
    output = testbed.done("run", *tiny, "outputs=summary")
    (folder,) = (tmp_path / "runs").iterdir()
    assert summary(folder)["run"]["id"] == folder.name
    check_words((f"runs/{folder.name}",), output)


def test_overload_of_a_server_is_reported(run):
    """One reservation of the longest output at a time serves fewer than the three that arrive."""
    finished = run(
        "policy=contiguous_oracle arrivals.duration_s=30 arrivals.rate=3 slo.tpot_s=0.05"
    )
    check_words(("overloaded", "the queue grows", "TPOT 0.05 s"), finished.output)
    rates = finished.summary["overload"]
    assert rates["served_requests_per_s"] < 0.9 * rates["offered_requests_per_s"]
    assert (
        finished.summary["memory"]["internal"]["per_iteration"] < 0.01
    )  # its reservations are exact


def test_counts_of_a_prefix_cache_are_shown(run):
    finished = run(
        "policy=prefix_caching trace=chat_histories model=llama-3-8b arrivals.duration_s=20"
    )
    counters = finished.summary["counters"]
    assert 0 < counters["hit_blocks"] < counters["blocks"]
    assert counters["hit_tokens"] == 16 * counters["hit_blocks"]
    share = counters["hit_blocks"] / counters["blocks"]
    check_words((f"{share:.1%} of all prompt blocks found",), finished.output)


def test_a_window_ends_the_run(run):
    finished = run(
        "+system=vllm-v1 model=llama-3-8b window_s=[5,20] arrivals.duration_s=20 arrivals.rate=30"
    )
    requests = finished.summary["requests"]
    assert finished.summary["simulated_s"] == pytest.approx(20, abs=0.1)
    assert requests["finished"] < requests["arrived"]


def test_run_stopped_at_a_latency_is_reported(run):
    finished = run("arrivals.rate=20 stop_at_latency=0.03 arrivals.duration_s=30 preemption=swap")
    check_words(("stopped early", "s/token"), finished.output)
    assert finished.summary["stopped_at_latency"] >= 0.03
    assert finished.summary["requests"]["finished"] < finished.summary["requests"]["arrived"]


def test_a_pool_with_a_draft_model_is_given_in_tokens(run):
    finished = run(
        "model=llama-3.1-8b gpu=h100-80gb scheduler=vllm_v1 speculation=draft_model "
        "speculation.drafter=llama-3.2-1b arrivals.duration_s=2 cost.iterations=null"
    )
    assert finished.summary["run"]["slot_layers"] is None
    check_words((f"{finished.summary['run']['pool_slots']:,} tokens,",), finished.output)


def test_pool_of_groups_of_layers_is_given_in_slots_of_one_layer(run):
    finished = run("model=gemma-2-27b policy=grouped arrivals.duration_s=5")
    check_words(("slots of one layer", "grouped ("), finished.output)


SWEEP = ("-m", "policy=paged,contiguous_max", "arrivals.speedup=0.5,1,2", "outputs=summary")


def lines_of_table(output):
    """The lines of a sweep's table, without the names of its runs."""
    return "\n".join(line for line in output.splitlines() if line[:1] in "┏┃┡│└")


def test_a_sweep_leaves_runs_in_folders_and_rows_of_one_table(testbed, tiny, tmp_path, snapshot):
    """The one snapshot of a sweep is of its table on the screen."""
    output = testbed.done("run", *tiny, *SWEEP)
    assert lines_of_table(output) == snapshot
    rows = table(tmp_path / "runs" / "sweep.csv")
    assert [(row["policy"], row["arrivals.speedup"]) for row in rows] == [
        (policy, speedup) for policy in ("paged", "contiguous_max") for speedup in ("0.5", "1", "2")
    ]
    for row in rows:
        totals = summary(tmp_path / "runs" / row["folder"])
        assert float(row["ttft_s_p99"]) == pytest.approx(totals["ttft_s"]["p99"])
        assert int(row["preemptions_recompute"]) == totals["preemptions"]["recompute"]
    assert (tmp_path / "runs" / "sweep.png").stat().st_size > 10_000
    check_words(("Sweep: 6 points", "runs/sweep.csv", "runs/sweep.png"), output)
    figure = ("--figure", "curves.pdf", "--metrics", "ttft_s.p50,preemptions_recompute")
    assert "figure: curves.pdf" in testbed.done("run", *tiny, *SWEEP, *figure)
    assert (tmp_path / "curves.pdf").stat().st_size > 1_000


def test_repeated_sweep_runs_nothing(testbed, tiny):
    words = ("-m", "policy.block_size=2,4", "outputs=summary", "hydra.sweep.dir=other")
    first = testbed.done("run", *tiny, *words)
    again = testbed.done("run", *tiny, *words)
    assert (first.count("done:"), again.count("complete already:")) == (2, 2)
    assert lines_of_table(again) == lines_of_table(first)


def test_a_second_sweep_has_a_table_of_its_own(testbed, tiny, tmp_path):
    """A sweep that has all runs of a table replaces it; another one does not."""
    words = ("outputs=summary", "hydra.sweep.dir=both")
    for axis, file in (
        ("policy.block_size=2", "sweep.csv"),
        ("policy.block_size=2,4", "sweep.csv"),
        ("policy=contiguous_max", "sweep-2.csv"),
        ("policy.block_size=2,4", "sweep.csv"),
        ("policy.block_size=8", "sweep-3.csv"),
    ):
        assert f"both/{file}\n" in testbed.done("run", *tiny, "-m", axis, *words)
    assert len(table(tmp_path / "both" / "sweep.csv")) == 2
    assert len(table(tmp_path / "both" / "sweep-2.csv")) == 1


def test_each_point_of_a_sweep_says_how_far_it_is(testbed, tiny):
    words = ("-m", "policy.block_size=2,4", "arrivals.speedup=range(1,3)", "hydra.sweep.dir=far")
    first = testbed.done("run", *tiny, *words, "outputs=summary")
    far = re.findall(r" (\d) of 4, [\d.]+ runs/s(, about \d+ s left)?\n", first)
    assert [place for place, _ in far] == ["1", "2", "3", "4"]
    assert [bool(rest) for _, rest in far] == [True, True, True, False]
    again = testbed.done("run", *tiny, *words, "outputs=summary")
    assert re.findall(r" (\d of 4)\n", again) == ["1 of 4", "2 of 4", "3 of 4", "4 of 4"]


def test_a_wrong_point_of_a_sweep_is_refused_before_another_one_runs(testbed, tiny, tmp_path):
    code, output, error = testbed(
        "run", *tiny, "-m", "policy.block_size=0,8", "outputs=summary", "hydra.sweep.dir=third"
    )
    assert code == 2
    check_words(("policy.block_size=0",), error)
    assert output == ""
    assert not (tmp_path / "third").exists()


def test_refusal_of_a_mistyped_choice(testbed, tiny, snapshot):
    """The one snapshot of a refusal."""
    assert testbed.refused("run", *tiny, "-m", "policy=paged,pagd") == snapshot


SESSIONS = ("trace=agent_sessions", f"trace.path={EXAMPLES / 'sessions.jsonl'}")


@pytest.mark.parametrize(
    ("words", "halved"),
    [
        ((*SESSIONS, "arrivals=sessions", "model=llama-3-8b"), "session starts"),
        (("trace=random", "arrivals.duration_s=9"), "arrivals"),
    ],
)
def test_the_second_half_names_its_events_and_its_two_rates(testbed, words, halved):
    code, out, _ = testbed("run", *words)
    assert code == 0
    [line] = [line for line in out.splitlines() if "throughput, 2nd half of" in line]
    assert f"2nd half of {halved} " in line
    assert re.search(r"[\d.]+ req/s arrive and [\d.]+ complete", line)
