"""`testbed show-memory` and `testbed timeline`: the data of the page, a trace that opens, and bad input."""

import gzip
import json
import re
import shutil

import pandas as pd
import pytest
from kept import check_text
from tiny_run import tiny_run

from testbed.experiments.runs.run_folder import read_config
from testbed.experiments.timeline.chrome_trace import trace_of


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run folder; nothing is written into it."""
    return tiny_run(tmp_path_factory.mktemp("plain") / "run")


@pytest.fixture
def show(testbed, tmp_path):
    """Call show-memory on a folder with options; the folder that it wrote to, and what it said."""

    def call(folder, *options):
        output = testbed.done("show-memory", str(folder), "--out", "shown", *options)
        return tmp_path / "shown", output

    return call


def data_of(folder):
    text = (folder / "memory_map.html").read_text()
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text)[1])


def test_page_data_contain_every_state_of_a_short_run(show, plain):
    folder, output = show(plain)
    assert output.split() == ["shown/memory_map.html"]
    assert not re.search(r"https?:|src=|@import|url\(", (folder / "memory_map.html").read_text())
    data = data_of(folder)
    assert (data["block_size"], data["pools"], data["start"]) == (4, [["device", 72]], 0)
    assert data["requests"]["2"] == [10, 14, 1]
    assert len(data["frames"]) == data["num_states"] > 20
    assert data["frames"][0] == {"t": 0, "step": 0, "seqs": [[0, 7, 0, [0, 4, 4, 4], [], 0]]}


def test_a_window_starts_with_the_whole_state(show, plain):
    data = data_of(show(plain, "--from", "0.3", "--to", "0.5")[0])
    assert (data["start"], data["end"], data["frames"][0]["t"]) == (0.3, 0.5, 0.3)
    assert 3 < len(data["frames"]) < 15
    assert all(entry[2] == 0 for entry in data["frames"][0]["seqs"])


def test_thinning_of_many_states_is_reported(testbed, run):
    folder = run("arrivals.duration_s=60 arrivals.rate=0.5").folder
    output = testbed.done("show-memory", "out")
    assert re.search(r"([\d,]+) of ([\d,]+) states are drawn", output)
    assert 750 <= len(data_of(folder)["frames"]) <= 1500
    assert (folder / "memory_map.html").stat().st_size < 3_500_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "nowhere: not a run folder, it has no config.yaml"),
        (("a", "--from", "2", "--to", "1"), "--from 2 --to 1: is an empty interval"),
        (("a", "--from", "-1"), "'-1' is not a number of seconds from 0 to 9,000,000"),
        (("a", "--to", "inf"), "'inf' is not a number of seconds"),
        (("a", "--from", "99"), "--from 99: the run ends at "),
        (("broken",), "broken/config.yaml: cannot be read: "),
        (("other",), "other/config.yaml: not the config of a run: "),
        (("a", "--out", "lengths.csv"), "lengths.csv: File exists"),
    ],
)
def test_bad_input_is_refused_in_one_line(testbed, plain, tmp_path, arguments, message):
    (tmp_path / "lengths.csv").write_text("not a folder")
    shutil.copytree(plain, tmp_path / "a")
    for name, text in (("broken", "a: [1"), ("other", "model: 1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(text)
    assert message in testbed.refused("show-memory", *arguments)


def test_changed_replay_of_a_run_is_reported(show, testbed, tmp_path):
    folder = tiny_run(tmp_path / "a")
    lengths = tmp_path / "a.csv"
    lengths.write_text(lengths.read_text().replace("9,12,", "9,20,"))
    assert "and would now end at " in show(folder)[1]
    assert "would now" not in show(folder, "--to", "0.5")[1]
    assert "and would now end at " in testbed.done("timeline", str(folder))


def test_plug_in_without_blocks_is_drawn(show, run):
    folder = run(
        "policy=custom policy._target_=example_policy.Slabs +policy.slab_size=40 arrivals.duration_s=10"
    ).folder
    data = data_of(show(folder, "--to", "5")[0])
    assert (data["block_size"], data["end"]) == (16, 5)
    assert {entry[3][1] for frame in data["frames"] for entry in frame["seqs"] if len(entry) > 1 and entry[3]} == {40}


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


@pytest.fixture(scope="module", params=["preemption=recompute", "preemption=swap"])
def timed(request, tmp_path_factory):
    return tiny_run(tmp_path_factory.mktemp("tiny") / "run", request.param, "outputs=full", blocks=10)


def test_request_events_match_the_table(timed, request):
    trace, table = trace_of(read_config(timed))[0], pd.read_csv(timed / "requests.csv")
    check_opens(trace)
    check_text("\n".join(json.dumps(event) for event in trace["traceEvents"]), request)
    begun = {event["name"]: event["ts"] for event in events(trace, "B", cat="request")}
    ended = {event["name"]: event["ts"] for event in events(trace, "E", cat="request")}
    for row in table.itertuples():
        name = f"request {row.request_id}"
        assert begun[name] == pytest.approx(row.arrival_s * 1e6)
        assert ended[name] == pytest.approx(row.finish_s * 1e6)


def test_prefill_ends_at_the_first_token_without_gaps(timed):
    trace, table = trace_of(read_config(timed))[0], pd.read_csv(timed / "requests.csv")
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


def test_iteration_and_pool_events_match_the_table(timed):
    trace, table = trace_of(read_config(timed))[0], pd.read_csv(timed / "iterations.csv")
    num_slots = json.loads((timed / "summary.json").read_text())["run"]["pool_slots"]
    shown = events(trace, "X")
    assert [event["ts"] for event in shown] == pytest.approx((table["start_s"] * 1e6).tolist())
    assert sum(event["args"]["iterations"] for event in shown) == table["iterations"].sum()
    slots = {event["ts"]: event["args"] for event in events(trace, "C", name="slots")}
    for row in table.itertuples():
        here = min(slots, key=lambda ts: abs(ts - row.start_s * 1e6))
        assert slots[here]["live"] == pytest.approx(row.live, abs=1e-3)
        assert sum(slots[here].values()) == pytest.approx(num_slots)
    assert slots[max(slots)]["live"] == 0


def test_preempted_requests_have_events(timed):
    trace, preemptions = (
        trace_of(read_config(timed))[0],
        json.loads((timed / "summary.json").read_text())["preemptions"],
    )
    assert sum(preemptions.values()) > 0
    for rule, name in (("recompute", "preempted"), ("swap", "swapped")):
        assert len(events(trace, "B", name=name)) == preemptions[rule]


def test_timeline_of_a_time_window(testbed, tmp_path, request):
    run = tiny_run(tmp_path / "run", blocks=5)  # too few for one of the requests
    output = testbed.done("timeline", str(run), "--from", "0.2", "--to", "0.4")
    assert "ui.perfetto.dev" in output
    part = json.loads((run / "timeline.json").read_text())
    check_opens(part)
    assert all(2e5 <= event["ts"] < 4e5 for event in events(part, "X"))
    assert 0 < len(events(part, "X")) < len(events(trace_of(read_config(run))[0], "X"))
    assert part["otherData"]["model"] == "opt-13b"
    check_text("\n".join(json.dumps(event) for event in part["traceEvents"]), request)
    testbed.done("timeline", str(run), "--to", "0.4", "--out", "part.json.gz")
    packed = json.loads(gzip.decompress((tmp_path / "part.json.gz").read_bytes()))
    assert max(event["ts"] for event in events(packed, "X")) < 4e5
    assert "the run ends at" in testbed.refused("timeline", str(run), "--from", "1000")
