"""`testbed timeline`: a trace that opens, and says what the tables of the run say."""

import json

import pandas as pd
import pytest
from tiny_run import tiny_run

from testbed.experiments.runs.run_folder import read_config
from testbed.experiments.timeline.chrome_trace import trace_of


def events(trace, kind, **wanted):
    found = [event for event in trace["traceEvents"] if event["ph"] == kind]
    return [event for event in found if all(event.get(key) == value for key, value in wanted.items())]


KEYS = {
    "M": {"args"}, "B": {"ts", "cat"}, "E": {"ts"}, "X": {"ts", "dur", "cat"}, "C": {"ts", "args"}, "i": {"ts", "s"},
}  # fmt: skip


def check_opens(trace):
    """The rules of the Chrome trace event format: keys by kind, times in order, what begins last ends first."""
    open_names, last = {}, {}
    for event in trace["traceEvents"]:
        assert {"ph", "pid", "tid", "name"} | KEYS[event["ph"]] <= event.keys()
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "process_sort_index", "thread_name", "thread_sort_index")
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


WAYS = ["preemption=recompute", "preemption=swap"]


@pytest.fixture(scope="module", params=WAYS)
def run(request, tmp_path_factory):
    return tiny_run(tmp_path_factory.mktemp("tiny") / "run", request.param, "outputs=full", blocks=10)


def test_request_events_match_the_table(run):
    trace, table = trace_of(read_config(run))[0], pd.read_csv(run / "requests.csv")
    check_opens(trace)
    begun = {event["name"]: event["ts"] for event in events(trace, "B", cat="request")}
    ended = {event["name"]: event["ts"] for event in events(trace, "E", cat="request")}
    for row in table.itertuples():
        name = f"request {row.request_id}"
        assert begun[name] == pytest.approx(row.arrival_s * 1e6)
        assert ended[name] == pytest.approx(row.finish_s * 1e6)


def test_prefill_ends_at_the_first_token_without_gaps(run):
    trace, table = trace_of(read_config(run))[0], pd.read_csv(run / "requests.csv")
    ends, open_request, last = set(), {}, {}
    for event in trace["traceEvents"]:
        lane = event["tid"]
        if event["ph"] == "B" and event["cat"] == "request":
            open_request[lane], last[lane] = event["name"], event["ts"]
        elif event["ph"] == "B":
            assert event["ts"] == last[lane]
        elif event["ph"] == "E":
            last[lane] = event["ts"]
            if event["name"] == "prefill":
                ends.add((open_request[lane], round(event["ts"])))
    for row in table.itertuples():
        assert (f"request {row.request_id}", round(row.first_token_s * 1e6)) in ends


def test_iteration_and_pool_events_match_the_table(run):
    trace, table = trace_of(read_config(run))[0], pd.read_csv(run / "iterations.csv")
    num_slots = json.loads((run / "summary.json").read_text())["run"]["pool_slots"]
    shown = events(trace, "X")
    assert [event["ts"] for event in shown] == pytest.approx((table["start_s"] * 1e6).tolist())
    assert sum(event["args"]["iterations"] for event in shown) == table["iterations"].sum()
    slots = {event["ts"]: event["args"] for event in events(trace, "C", name="slots")}
    for row in table.itertuples():
        here = min(slots, key=lambda ts: abs(ts - row.start_s * 1e6))
        assert slots[here]["live"] == pytest.approx(row.live, abs=1e-3)
        assert sum(slots[here].values()) == pytest.approx(num_slots)
    assert slots[max(slots)]["live"] == 0


def test_preempted_requests_have_events(run):
    trace, preemptions = trace_of(read_config(run))[0], json.loads((run / "summary.json").read_text())["preemptions"]
    assert sum(preemptions.values()) > 0
    for rule, name in (("recompute", "preempted"), ("swap", "swapped")):
        assert len(events(trace, "B", name=name)) == preemptions[rule]


def test_timeline_of_a_time_window(testbed, tmp_path):
    run = tiny_run(tmp_path / "run")
    code, output, _ = testbed("timeline", str(run), "--from", "0.2", "--to", "0.4")
    assert code == 0
    assert "ui.perfetto.dev" in output
    part = json.loads((run / "timeline.json").read_text())
    check_opens(part)
    assert all(2e5 <= event["ts"] < 4e5 for event in events(part, "X"))
    assert 0 < len(events(part, "X")) < len(events(trace_of(read_config(run))[0], "X"))
    assert part["otherData"]["model"] == "opt-13b"
    code, _, error = testbed("timeline", str(run), "--from", "1000")
    assert (code, "the run ends at" in error) == (2, True)
