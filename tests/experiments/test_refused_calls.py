"""Wrong input in Python gives one InputError of one line: from simulate, sweep and capacity, and
from parts alone.
"""

import numpy as np
import pandas as pd
import pytest
from refusals import check_refusal

import testbed as front
from testbed.core.request import Request, Rows
from testbed.core.shapes import read_model
from testbed.core.specs import GpuSpec, ServerSpec
from testbed.engine.arrivals import Gamma, Replay, Sessions, Slotted
from testbed.memory.contiguous.reservations import ContiguousMax
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.hash_chain import block_contents
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.preemption import Swap
from testbed.sched.scheduler import Scheduler
from testbed.traces.synthetic import Fitted

POOL = PoolSpec(64, 32)
SMALL = ServerSpec("small", GpuSpec("gpu", 10**9, 1e9, 1e12, 1e8, 1e9), 1)
ONE = Request(0, arrival_ps=0, prompt_len=5, output_len=5)
ROWS = Rows(np.array([1]), np.array([1]))
LENGTHS = {"prompt_len": [1], "output_len": [1]}
BUILT = ChunkedPrefill(Paged(POOL), Swap(), max_num_batched_tokens=64, max_num_seqs=4)
SIMULATE = {
    "an eviction order without a cache": ({"eviction": "arc"}, ("eviction",)),
    "a system that is nowhere": ({"system": "vllm-v9"}, ("vllm",)),
    "a class that is no policy": ({"policy": "json:JSONDecoder"}, ("JSONDecoder",)),
    "a class object that is no policy": ({"policy": int}, ("policy", "int")),
    "a function that makes nothing": ({"policy": lambda pool: None}, ("lambda",)),
    "a parameter that a class has not": (
        {"policy": Paged, "policy.blok_size": 3},
        ("did you mean block_size",),
    ),
    "no number": ({"rate": float("nan")}, ("arrivals.rate", "nan")),
    "objectives that are no mapping": ({"slo": 3}, ("slo", "3")),
    "a value of no type": ({"slo": {"ttft_s": object()}}, ("slo={'ttft_s': <",)),
    "sessions of lengths": (
        {"arrivals": "sessions", "trace": "sharegpt"},
        ("need a whole trace file",),
    ),
    "no sequence": ({"num_seqs": 0}, ("workload.num_seqs=0: must be above 0",)),
    **{
        f"a made policy and {key}": (
            {"policy": Paged(POOL), key: 1},
            (f"{key}: does not go with a policy",),
        )
        for key in ("null_blocks", "server.num_blocks", "server.kv_memory_gib", "swap_space_gib")
    },
    "costs beyond all time": (
        {"duration_s": 5, "software.overhead_s": 8e6},
        ("64 bits count picoseconds up",),
    ),
    "a frame without prompts": (
        {"trace": pd.DataFrame({"prompt": [1]})},
        ("no column 'prompt_len'",),
    ),
    **{
        f"a frame with {name}": (
            {"trace": pd.DataFrame(LENGTHS | {name: [1]})},
            (f"'{name}'; did you mean '{meant}'?",),
        )
        for name, meant in (
            ("arrival_time", "arrival_s"),
            ("session_id", "session"),
            ("prompt_id", "prompt_ids"),
        )
    },
    "a frame without rows": (
        {"trace": pd.DataFrame(LENGTHS)[:0], "rate": 1},
        ("the data frame: no row (",),
    ),
    "a frame with two lengths": (
        {"trace": pd.DataFrame(LENGTHS | {"input_tokens": [1]})},
        ("prompt_len and input_",),
    ),
    "a frame with too few ids": (
        {"trace": pd.DataFrame(LENGTHS | {"prompt_ids": [[1, 2]]})},
        ("2 ids for 1 tokens",),
    ),
    "half a token": (
        {"trace": pd.DataFrame(LENGTHS | {"prompt_len": [1.5]})},
        ("is not a whole number of tokens",),
    ),
    "no time": ({"trace": pd.DataFrame(LENGTHS | {"arrival_s": [None]})}, ("arrival_s",)),
    "a time that is no time": (
        {
            "trace": pd.DataFrame(
                {"prompt_len": [1] * 3, "output_len": [1] * 3, "arrival_s": [0, float("nan"), 1]}
            )
        },
        ("line 3, column arrival_s: ''",),
    ),
    "a date for a time": (
        {"trace": pd.DataFrame(LENGTHS | {"arrival_s": pd.to_datetime(["2024-01-01"])})},
        ("not a time in seconds",),
    ),
    "a scheduler that is made": ({"scheduler": BUILT}, ("give its class",)),
    "a rule of another kind": ({"preemption": Paged(POOL)}, ("preemption", "Paged")),
    "an abstract class": ({"scheduler": Scheduler}, ("Scheduler",)),
}
SWEEP = {
    "an axis without values": ({"policy": []}, ("policy", "an empty list")),
    "one wrong number": ({"rate": [1, -1]}, ("arrivals.rate", "-1")),
    "no process": ({"rate": [1], "jobs": -1}, ("jobs", "-1")),
    "objects for a folder": (
        {"policy": [lambda pool: Paged(pool)], "folder": "runs"},
        ("a run folder cannot record",),
    ),
}
CAPACITY = {
    "no objective": ({}, ("no objective",)),
    "a rate": ({"ttft_s": 1, "rate": 3}, ("rate", "what capacity looks for")),
    "out of reach": ({"ttft_s": 1e-9, "duration_s": 5}, ("out of reach",)),
    "a list of requests": ({"tpot_s": 1, "trace": [ONE]}, ("does not apply to a list",)),
}
PARTS = {
    "a watermark above the pool": (lambda: Paged(POOL, watermark=1.5), ("watermark", "1.5")),
    "a buddy's unit of nothing": (
        lambda: ContiguousMax(POOL, block_size=0),
        ("block_size=0: must be",),
    ),
    "a server too small": (
        lambda: SMALL.kv_slots(read_model("opt-13b")),
        ("leaves no memory for a KV cache",),
    ),
    "no burstiness": (lambda: Gamma(1, 10, 0), ("arrivals.burstiness", "0")),
    "more slots than can be drawn": (
        lambda: Slotted(1, 10, 1e-9),
        ("arrivals.slot_s=1e-09",),
    ),
    "a slot longer than all": (
        lambda: Slotted(1, 10, 30),
        ("arrivals.duration_s=10", "arrivals.slot_s=30"),
    ),
    "a slot and a half": (lambda: Slotted(1, 9, 6), ("must be a whole number of slots",)),
    "no speed": (lambda: Replay(0), ("arrivals.speedup", "0")),
    "all at once": (
        lambda: Gamma(1, 10, 1e12).times_ps(None, 0),
        ("arrivals.burstiness", "1e+12: of 10 requests"),
    ),
    "no session that waits": (lambda: Sessions().workload(ROWS, 1, False, 0), ("waits for which",)),
    "nothing to replay": (lambda: Replay().times_ps(None, 0), ("needs a trace with time stamps",)),
    "a trace without prompt content": (lambda: next(ROWS.prompts()), ("has no prompt content",)),
    "blocks across ids": (lambda: block_contents((1, 2), 24, 48, 16), ("one must divide",)),
    "no such model": (lambda: read_model("opt-1b"), ("model=opt-1b:", "unknown (choose one of ")),
    "a negative number of rows": (lambda: Fitted("sharegpt").rows(-1, 0), ("num_rows=-1",)),
    "a negative seed": (lambda: Fitted("sharegpt").rows(1, -1), ("seed=-1",)),
    "a GPU's run": (
        lambda: front.simulate("engine=gpu", duration_s=1),
        ("testbed run engine=gpu",),
    ),
    "a limit that no row keeps": (lambda: Fitted("sharegpt").rows(9, 0, 2), ("hardly any row",)),
    "slots in NumPy's integers": (
        lambda: PoolSpec(np.int64(64), 32),
        ("num_slots=np.int64(64): must be",),
    ),
}


@pytest.fixture(autouse=True)
def _nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("options", "words"), SIMULATE.values(), ids=SIMULATE)
def test_simulate_refuses_wrong_options(options, words):
    check_refusal(
        words, front.simulate, **options if "trace" in options else {"duration_s": 1, **options}
    )


@pytest.mark.parametrize(("options", "words"), SWEEP.values(), ids=SWEEP)
def test_sweep_refuses_wrong_options(options, words):
    check_refusal(words, front.sweep, **{"duration_s": 1, "jobs": 1, **options})


@pytest.mark.parametrize(("options", "words"), CAPACITY.values(), ids=CAPACITY)
def test_capacity_refuses_wrong_options(options, words):
    check_refusal(words, front.capacity, **options)


@pytest.mark.parametrize(("call", "words"), PARTS.values(), ids=PARTS)
def test_constructors_refuse_wrong_arguments(call, words):
    check_refusal(words, call)


def test_policy_already_in_use_is_refused():
    policy = Paged(PoolSpec(4096, 2048))
    policy.register_prefix(64)
    check_refusal(("in use",), front.simulate, policy=policy, rate=2, duration_s=30)
