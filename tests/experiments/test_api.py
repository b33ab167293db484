"""`import testbed`: names or objects in, data frames out; the same runs as those of the command line."""

import json
import subprocess
import sys
from functools import partial
from typing import get_args

import numpy as np
import pandas as pd
import pytest
from tiny_run import without_id

import testbed as front
from testbed import api
from testbed.core.request import PS, Request
from testbed.core.shapes import shipped
from testbed.core.specs import ModelSpec
from testbed.experiments.runs.choice_names import CUSTOM, names_of
from testbed.experiments.runs.compose import configured
from testbed.memory.contiguous.contiguous import ContiguousMax
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.result import front_end
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.preemption import Swap
from testbed.sim.arrivals import Poisson

SHORT = {"rate": 2, "duration_s": 30}


class UserPolicy(Paged):
    """A policy that no config names."""


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (("policy.block_size=32", "seed=3"), {"policy.block_size": 32, "seed": 3}),
        (("workload.num_seqs=2", "seed=3"), {"num_seqs": np.int64(2), "seed": np.int64(3)}),
        (("+protocol=sosp23", "+system=orca-pow2"), {"protocol": "sosp23", "system": "orca-pow2"}),
        (
            ("trace=alpaca", "workload.num_seqs=3", "workload.beam=true"),
            {"trace": "alpaca", "num_seqs": 3, "beam": True},
        ),
        (
            ("policy=prefix_caching", "eviction@policy.eviction=arc", "trace=chat_histories", "model=llama-3-8b"),
            {"policy": "prefix_caching", "eviction": "arc", "trace": "chat_histories", "model": "llama-3-8b"},
        ),
        (("server.kv_memory_gib={}",), {"server.kv_memory_gib": {}}),
        (("slo.ttft_s=0.1", "window_s=[5,20]"), {"slo": {"ttft_s": 0.1}, "window_s": (5, 20)}),
    ],
    ids=str,
)
def test_options_in_python_are_those_of_the_command_line(words, options):
    assert front_end().configure((), options) == configured(words)


def test_tables_equal_those_of_a_run_folder(testbed, tmp_path):
    testbed.done("run", "arrivals.rate=2", "arrivals.duration_s=30", "hydra.run.dir=a")
    result = front.simulate(**SHORT)
    written = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert without_id(json.loads(json.dumps(result.summary))) == without_id(written)
    for name, table in (("requests", result.requests), ("iterations", result.iterations)):
        written = pd.read_csv(tmp_path / "a" / f"{name}.csv", dtype={"rejected": str})
        if "rejected" in written:
            written["rejected"] = written["rejected"].fillna("")
        pd.testing.assert_frame_equal(written, table, check_dtype=False, check_exact=True)
    assert result.plot()._repr_png_().startswith(b"\x89PNG")
    assert "paged" in repr(result).lower()


@pytest.mark.parametrize(
    ("policy", "name"),
    [(ContiguousMax, "contiguous_max"), (partial(Paged, block_size=16), "paged"), (lambda pool: Paged(pool), "paged")],
)
def test_policy_class_or_function_gets_the_pool(policy, name):
    by_name, by_object = front.simulate(policy=name, **SHORT), front.simulate(policy=policy, **SHORT)
    assert {**by_object.summary, "run": None} == {**by_name.summary, "run": None}


def test_policy_object_brings_its_pool():
    pool = PoolSpec(4000, 2048)
    result = front.simulate(policy=UserPolicy(pool, block_size=8), **SHORT)
    run = result.summary["run"]
    assert (run["pool_slots"], run["pool_blocks"], run["block_size"]) == (4000, 500, 8)
    assert run["policy"] == "UserPolicy(block_size=8)"
    assert result.num_slots == 4000


def test_other_parts_can_be_objects():
    by_name = front.simulate(scheduler="chunked", preemption="swap", **SHORT).summary
    model = ModelSpec(**shipped("opt-13b")["shape"])
    own = front.simulate(scheduler=ChunkedPrefill, preemption=Swap(), arrivals=Poisson(2, 30), model=model).summary
    assert {**own, "run": None} == {**by_name, "run": None}


def test_requests_arrive_at_their_arrival_times():
    requests = [Request(7, 2 * PS, 30, 5), Request(3, PS, 20, 9, num_seqs=2)]
    table = front.simulate(trace=requests).requests
    assert table["request_id"].tolist() == [3, 7]
    assert table["arrival_s"].tolist() == [1, 2]
    assert table["num_seqs"].tolist() == [2, 1]


def test_data_frame_is_replayed_or_sampled():
    frame = pd.DataFrame({"prompt_len": [10, 20], "output_len": [5, 6], "arrival_s": [4.0, 1.0]})
    played = front.simulate(trace=frame).requests
    assert played[["arrival_s", "prompt_len"]].values.tolist() == [[0, 20], [3, 10]]
    drawn = front.simulate(trace=frame, **SHORT).requests
    assert len(drawn) > 30
    assert set(drawn["prompt_len"]) == {10, 20}


def test_a_sweep_has_a_row_for_each_combination():
    table = front.sweep(policy=["contiguous_max", UserPolicy], rate=[1, 2], duration_s=20, jobs=1)
    assert table[["policy", "rate"]].values.tolist() == [
        ["contiguous_max", 1], ["contiguous_max", 2], ["UserPolicy", 1], ["UserPolicy", 2],
    ]  # fmt: skip
    alone = front.simulate(policy="contiguous_max", rate=2, duration_s=20).summary
    assert table.loc[1, "ttft_s_p95"] == alone["ttft_s"]["p95"]
    assert table.loc[1, "policy_in_full"] == "ContiguousMax(block_size=16)"
    assert list(table.columns[:3]) == ["policy", "rate", "model"]


def test_sweep_with_a_folder_reuses_finished_runs(tmp_path):
    first = front.sweep(rate=[1, 2], duration_s=10, folder=tmp_path, jobs=2)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/summary.json")}
    assert len(times) == 2
    pd.testing.assert_frame_equal(front.sweep(rate=[1, 2], duration_s=10, folder=tmp_path, jobs=1), first)
    again = front.sweep(rate=[1, 2], duration_s=10, jobs=1)
    pd.testing.assert_frame_equal(again, first[again.columns])
    assert times == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/summary.json")}


@pytest.mark.parametrize("group", ["policy", "scheduler", "preemption"])
def test_names_that_an_editor_completes_are_those_that_ship(group):
    names = get_args(getattr(api, f"{group.capitalize()}Name"))
    assert set(names) == {*names_of(group)} - {CUSTOM}


def test_import_loads_no_slow_package():
    slow = {"hydra", "pandas", "numpy", "testbed.experiments"}
    code = f"import sys, testbed; assert not {slow} & set(sys.modules); testbed.sweep"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert set(front.__all__) <= set(dir(front))
    with pytest.raises(AttributeError):
        front.simulat  # noqa: B018


def test_sessions_and_priorities_of_a_data_frame_reach_scheduler_and_result():
    frame = pd.DataFrame(
        {"prompt_len": [200] * 8, "output_len": [50] * 8, "session": list("aabbccdd"), "priority": [1, 0] * 4}
    )
    slots = {"server.num_blocks": 20, "rate": 4, "duration_s": 2}
    result = front.simulate("~server.kv_memory_gib", trace=frame, scheduler="priority", **slots)
    waits = result.requests.groupby("priority")["ttft_s"].mean()
    assert waits[0] < waits[1]
    assert result.sessions["requests"].sum() == len(result.requests)
