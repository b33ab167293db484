"""`testbed show`: charts, thinned pages of memory, changed replays, and a timeline that opens."""

import gzip
import itertools
import json
import re

import pandas as pd
import pytest
from tiny_run import tiny_run

from testbed.experiments.look.timeline.chrome_trace import trace_of
from testbed.experiments.runs import progress
from testbed.experiments.runs.run_folder import read_config


def data_of(folder):
    text = (folder / "memory_map.html").read_text()
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', text)[1]
    )


@pytest.mark.parametrize("fleet", ["", "model=llama-3-8b gpu=h200 replicas=2 gpu@1=l40s"])
def test_charts_of_a_finished_run_are_those_of_full_outputs(testbed, run, fleet):
    full = run(f"arrivals.duration_s=5 outputs=full {fleet}", "full").folder
    tables = run(f"arrivals.duration_s=5 outputs=tables {fleet}", "tables").folder
    assert testbed.done("show", "charts", "tables").strip() == "tables/charts.png"
    assert (tables / "charts.png").read_bytes() == (full / "charts.png").read_bytes()


def test_a_run_without_tables_has_no_charts(testbed, run):
    run("arrivals.duration_s=5 outputs=summary")
    assert "out" in testbed.refused("show", "charts", "out")


def test_thinning_of_many_states_is_reported(testbed, run):
    folder = run("arrivals.duration_s=60 arrivals.rate=0.5").folder
    output = testbed.done("show", "memory", "out")
    assert re.search(r"([\d,]+) of ([\d,]+) states are drawn", output)
    assert 750 <= len(data_of(folder)["frames"]) <= 1500
    assert (folder / "memory_map.html").stat().st_size < 3_500_000


def test_progress_names_the_time_that_is_left(testbed, run, monkeypatch):
    run("arrivals.duration_s=60 arrivals.rate=0.5")
    monkeypatch.setattr(progress, "REPORT_S", 1e-3)
    lines = testbed("show", "memory", "out")[2].splitlines()
    assert re.fullmatch(r"simulating again: \d+ of \d+ s, about \d+ s left, \d+ s", lines[-1])


def test_changed_replay_of_a_run_is_reported(testbed, tmp_path):
    folder = str(tiny_run(tmp_path / "a"))
    lengths = tmp_path / "a.csv"
    lengths.write_text(lengths.read_text().replace("9,12,", "9,20,"))
    assert "and would now end at " in testbed.done("show", "memory", folder)
    assert "would now" not in testbed.done("show", "memory", folder, "--to", "0.5")
    assert "and would now end at " in testbed.done("show", "timeline", folder)


KEYS = {
    "M": {"args"},
    "B": {"ts", "cat"},
    "E": {"ts"},
    "X": {"ts", "dur", "cat"},
    "C": {"ts", "args"},
    "i": {"ts", "s"},
}


def check_opens(trace):
    """The rules of the Chrome trace event format: keys by kind, times in order, what begins last
    ends first.
    """
    open_names, last = {}, {}
    for event in trace["traceEvents"]:
        assert {"ph", "pid", "tid", "name"} | KEYS[event["ph"]] <= event.keys()
        if event["ph"] == "M":
            assert event["name"] in (
                "process_name",
                "process_sort_index",
                "thread_name",
                "thread_sort_index",
            )
            continue
        track = event["pid"], event["tid"]
        assert last.get(track, 0) <= event["ts"] <= event["ts"] + event.get("dur", 0)
        last[track] = event["ts"]
        if event["ph"] == "B":
            open_names.setdefault(track, []).append(event["name"])
        elif event["ph"] == "E":
            assert open_names[track].pop() == event["name"]
        elif event["ph"] == "C":
            assert all(type(value) in (int, float) for value in event["args"].values())
    assert not any(open_names.values())


def phases_of(trace, request_id):
    """The phases of a request in order: name, begin and end in microseconds."""
    lane = None
    phases, begins = [], {}
    for event in trace["traceEvents"]:
        if event["name"] == f"request {request_id}":
            lane = (event["pid"], event["tid"]) if event["ph"] == "B" else None
        elif lane == (event["pid"], event["tid"]) and event.get("cat") == "phase":
            if event["ph"] == "B":
                begins[event["name"]] = event["ts"]
            else:
                phases.append((event["name"], begins.pop(event["name"]), event["ts"]))
    return phases


@pytest.fixture(scope="module", params=["recompute", "swap"])
def traced(request, tmp_path_factory):
    """The trace of seven requests on ten blocks, and the run's tables."""
    folder = tmp_path_factory.mktemp("traced") / "run"
    tiny_run(folder, f"preemption={request.param}", "outputs=tables", blocks=10)
    tables = [pd.read_csv(folder / f"{name}.csv") for name in ("requests", "iterations")]
    return trace_of(read_config(folder))[0], *tables


def test_phases_of_a_request_join_its_arrival_first_token_and_end(traced):
    trace, requests, _ = traced
    check_opens(trace)
    for row in requests.itertuples():
        phases = phases_of(trace, row.request_id)
        assert phases[0][1] == pytest.approx(1e6 * row.arrival_s)
        assert phases[-1][2] == pytest.approx(1e6 * row.finish_s)
        for (_, _, end), (_, begin, _) in itertools.pairwise(phases):
            assert end == begin
        prefills = [phase for phase in phases if phase[0] == "prefill"]
        assert prefills[0][2] == pytest.approx(1e6 * row.first_token_s)


def test_a_request_waits_again_as_often_as_it_was_preempted(traced):
    trace, requests, _ = traced
    assert (requests["num_recomputes"] + requests["num_swaps"]).sum() > 0
    for row in requests.itertuples():
        names = [name for name, *_ in phases_of(trace, row.request_id)]
        assert len(names) - len([n for n in names if n in ("queued", "prefill", "decode")]) == (
            row.num_recomputes + row.num_swaps
        )


def test_iterations_and_the_pool_are_those_of_the_table(traced):
    trace, _, iterations = traced
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert [event["ts"] for event in spans] == pytest.approx((1e6 * iterations["start_s"]).tolist())
    assert [event["dur"] for event in spans] == pytest.approx(
        (1e6 * iterations["duration_s"]).tolist()
    )
    slots = [event["args"] for event in trace["traceEvents"] if event["name"] == "slots"]
    assert len({sum(kinds.values()) for kinds in slots}) == 1  # the whole pool at any time


def begins_of_iterations(trace):
    return [event["ts"] for event in trace["traceEvents"] if event["ph"] == "X"]


def test_timeline_of_a_time_window(testbed, tmp_path):
    run = tiny_run(tmp_path / "run", blocks=5)  # too few for one of the requests
    output = testbed.done("show", "timeline", str(run), "--from", "0.2", "--to", "0.4")
    assert "ui.perfetto.dev" in output
    part = json.loads((run / "timeline.json").read_text())
    check_opens(part)
    assert all(2e5 <= begin < 4e5 for begin in begins_of_iterations(part))
    testbed.done("show", "timeline", str(run), "--to", "0.4", "--out", "part.json.gz")
    packed = json.loads(gzip.decompress((tmp_path / "part.json.gz").read_bytes()))
    assert max(begins_of_iterations(packed)) < 4e5
    assert ": --from 1000: " in testbed.refused("show", "timeline", str(run), "--from", "1000")
