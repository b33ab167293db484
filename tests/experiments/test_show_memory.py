"""`testbed show memory` and `testbed show timeline`: thinned pages, changed replays, a trace that
opens.
"""

import gzip
import json
import re

import pytest
from kept import check_text
from tiny_run import tiny_run

from testbed.experiments.runs.run_folder import read_config
from testbed.experiments.timeline.chrome_trace import trace_of


def data_of(folder):
    text = (folder / "memory_map.html").read_text()
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', text)[1]
    )


def test_thinning_of_many_states_is_reported(testbed, run):
    folder = run("arrivals.duration_s=60 arrivals.rate=0.5").folder
    output = testbed.done("show", "memory", "out")
    assert re.search(r"([\d,]+) of ([\d,]+) states are drawn", output)
    assert 750 <= len(data_of(folder)["frames"]) <= 1500
    assert (folder / "memory_map.html").stat().st_size < 3_500_000


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


@pytest.mark.parametrize("rule", ["preemption=recompute", "preemption=swap"])
def test_request_events_match_the_table(rule, tmp_path, request):
    """Of seven requests on ten blocks; the golden text was held against the run's tables."""
    trace = trace_of(read_config(tiny_run(tmp_path / "run", rule, blocks=10)))[0]
    check_opens(trace)
    check_text("\n".join(json.dumps(event) for event in trace["traceEvents"]), request)


def begins_of_iterations(trace):
    return [event["ts"] for event in trace["traceEvents"] if event["ph"] == "X"]


def test_timeline_of_a_time_window(testbed, tmp_path, request):
    run = tiny_run(tmp_path / "run", blocks=5)  # too few for one of the requests
    output = testbed.done("show", "timeline", str(run), "--from", "0.2", "--to", "0.4")
    assert "ui.perfetto.dev" in output
    part = json.loads((run / "timeline.json").read_text())
    check_opens(part)
    check_text("\n".join(json.dumps(event) for event in part["traceEvents"]), request)
    testbed.done("show", "timeline", str(run), "--to", "0.4", "--out", "part.json.gz")
    packed = json.loads(gzip.decompress((tmp_path / "part.json.gz").read_bytes()))
    assert max(begins_of_iterations(packed)) < 4e5
    assert "the run ends at" in testbed.refused("show", "timeline", str(run), "--from", "1000")
