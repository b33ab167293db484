"""`import testbed`: names or objects in, data frames out; the same runs as those of the command line."""

import json
import subprocess
import sys
from functools import partial

import pandas as pd
import pytest

import testbed as front
from testbed.core.errors import InputError
from testbed.core.request import PS, Request
from testbed.core.shapes import shipped
from testbed.core.specs import ModelSpec
from testbed.memory.contiguous.contiguous import ContiguousMax
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.preemption import Swap
from testbed.sim.arrivals import Poisson

SHORT = {"rate": 2, "duration_s": 30}


class OfMyOwn(Paged):
    """A policy that no config names."""


def without_id(summary):
    run = {key: value for key, value in summary["run"].items() if key != "id"}
    return {**summary, "run": run}


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ((), {}),
        (("policy=contiguous_max",), {"policy": "contiguous_max"}),
        (("policy.block_size=32", "seed=3"), {"policy.block_size": 32, "seed": 3}),
        (("+system=vllm-v1", "scheduler.max_num_seqs=16"), {"system": "vllm-v1", "scheduler.max_num_seqs": 16}),
        (("+protocol=sosp23", "+system=orca-pow2"), {"protocol": "sosp23", "system": "orca-pow2"}),
        (
            ("trace=alpaca", "workload.num_seqs=3", "workload.beam=true", "preemption=swap"),
            {"trace": "alpaca", "num_seqs": 3, "beam": True, "preemption": "swap"},
        ),
        (
            ("policy=prefix_caching", "eviction@policy.eviction=arc", "trace=chat_histories", "model=llama-3-8b"),
            {"policy": "prefix_caching", "eviction": "arc", "trace": "chat_histories", "model": "llama-3-8b"},
        ),
        (("slo.ttft_s=0.1", "window_s=[5,20]"), {"slo": {"ttft_s": 0.1}, "window_s": (5, 20)}),
    ],
    ids=str,
)
def test_a_run_gives_the_summary_of_the_command_line(testbed, tmp_path, words, options):
    timing = ("arrivals.rate=2", "arrivals.duration_s=30")
    assert testbed("run", *words, *timing, "outputs=summary", "hydra.run.dir=a")[0] == 0
    written = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert without_id(json.loads(json.dumps(front.simulate(**options, **SHORT).summary))) == without_id(written)


def test_tables_are_those_of_a_run_folder(testbed, tmp_path):
    assert testbed("run", "arrivals.rate=2", "arrivals.duration_s=30", "hydra.run.dir=a")[0] == 0
    result = front.simulate(**SHORT)
    for name, table in (("requests", result.requests), ("iterations", result.iterations)):
        written = pd.read_csv(tmp_path / "a" / f"{name}.csv", dtype={"rejected": str})
        if "rejected" in written:
            written["rejected"] = written["rejected"].fillna("")
        pd.testing.assert_frame_equal(written, table, check_dtype=False, check_exact=True)
    assert result.plot()._repr_png_().startswith(b"\x89PNG")
    assert "paged" in repr(result).lower()


@pytest.mark.parametrize(
    ("policy", "name"),
    [
        (ContiguousMax, "contiguous_max"),
        (Paged, "paged"),
        (partial(Paged, block_size=16), "paged"),
        (lambda pool: Paged(pool), "paged"),
    ],
)
def test_a_class_or_a_function_is_made_with_the_pool(policy, name):
    by_name, by_object = front.simulate(policy=name, **SHORT), front.simulate(policy=policy, **SHORT)
    assert {**by_object.summary, "run": None} == {**by_name.summary, "run": None}


def test_a_policy_that_is_made_already_brings_its_pool():
    pool = PoolSpec(4000, 2048)
    result = front.simulate(policy=OfMyOwn(pool, block_size=8), **SHORT)
    run = result.summary["run"]
    assert (run["pool_slots"], run["pool_blocks"], run["block_size"]) == (4000, 500, 8)
    assert run["policy"] == "OfMyOwn(block_size=8)"
    assert result.num_slots == 4000


def test_other_parts_may_be_objects_too():
    by_name = front.simulate(scheduler="chunked", preemption="swap", **SHORT).summary
    model = ModelSpec(**shipped("opt-13b").shape)
    own = front.simulate(scheduler=ChunkedPrefill, preemption=Swap(), arrivals=Poisson(2, 30), model=model).summary
    assert {**own, "run": None} == {**by_name, "run": None}


def test_parameters_of_a_class_are_given_by_key():
    result = front.simulate(policy=OfMyOwn, **{"policy.block_size": 4}, **SHORT)
    assert result.summary["run"]["block_size"] == 4


def test_requests_come_at_their_own_times():
    requests = [Request(7, 2 * PS, 30, 5), Request(3, PS, 20, 9, num_seqs=2)]
    table = front.simulate(trace=requests).requests
    assert table["request_id"].tolist() == [3, 7]
    assert table["arrival_s"].tolist() == [1, 2]
    assert table["num_seqs"].tolist() == [2, 1]


def test_a_data_frame_is_played_back_or_drawn_from():
    frame = pd.DataFrame({"prompt_len": [10, 20], "output_len": [5, 6], "arrival_s": [4.0, 1.0]})
    played = front.simulate(trace=frame).requests
    assert played[["arrival_s", "prompt_len"]].values.tolist() == [[0, 20], [3, 10]]
    drawn = front.simulate(trace=frame, **SHORT).requests
    assert len(drawn) > 30
    assert set(drawn["prompt_len"]) == {10, 20}


def test_a_sweep_has_a_row_for_each_combination():
    table = front.sweep(policy=["contiguous_max", OfMyOwn], rate=[1, 2], duration_s=20, jobs=1)
    assert table[["policy", "rate"]].values.tolist() == [
        ["contiguous_max", 1], ["contiguous_max", 2], ["OfMyOwn", 1], ["OfMyOwn", 2],
    ]  # fmt: skip
    alone = front.simulate(policy="contiguous_max", rate=2, duration_s=20).summary
    assert table.loc[1, "ttft_s_p95"] == alone["ttft_s"]["p95"]
    assert table.loc[1, "policy_in_full"] == "ContiguousMax(block_size=16)"
    assert list(table.columns[:3]) == ["policy", "rate", "model"]


def test_cores_change_nothing():
    options = {"rate": [1, 2, 3], "duration_s": 10}
    pd.testing.assert_frame_equal(front.sweep(jobs=1, **options), front.sweep(jobs=2, **options))


def test_a_sweep_with_a_folder_runs_nothing_twice(tmp_path):
    first = front.sweep(rate=[1, 2], duration_s=10, folder=tmp_path, jobs=1)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/summary.json")}
    assert len(times) == 2
    pd.testing.assert_frame_equal(front.sweep(rate=[1, 2], duration_s=10, folder=tmp_path, jobs=1), first)
    assert times == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/summary.json")}


def test_capacity_is_where_the_share_is_lost():
    found = front.capacity(policy="contiguous_max", ttft_s=0.5, duration_s=60, share=0.9, precision=0.1)
    inside = dict(zip(found.table["rate_requests_per_s"], found.table["share_inside"], strict=True))
    kept, lost = [r for r, s in inside.items() if s >= 0.9], [r for r, s in inside.items() if s < 0.9]
    assert max(kept) < found.rate < min(rate for rate in lost if rate > max(kept))
    assert min(rate for rate in lost if rate > max(kept)) / max(kept) <= 1.11


def test_a_used_policy_is_refused():
    policy = Paged(PoolSpec(4096, 2048))
    policy.register_prefix(64)
    with pytest.raises(InputError, match="in use"):
        front.simulate(policy=policy, **SHORT)


def test_a_folder_holds_no_objects(tmp_path):
    with pytest.raises(InputError, match="no run folder can hold"):
        front.sweep(policy=[OfMyOwn], folder=tmp_path, jobs=1, **SHORT)


def test_the_import_itself_loads_nothing_and_the_rest_comes_when_used():
    code = (
        "import sys, testbed; assert not {'hydra', 'pandas', 'numpy', 'experiments'} & set(sys.modules); testbed.sweep"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert set(front.__all__) <= set(dir(front))
    with pytest.raises(AttributeError):
        front.simulat  # noqa: B018
