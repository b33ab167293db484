"""Wrong input to testbed.simulate, sweep and capacity: one InputError of one line, as on the command line."""

import pandas as pd
import pytest

import testbed as front
from testbed.core.errors import InputError
from testbed.core.request import Request
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.preemption import Swap
from testbed.sched.scheduler import Scheduler

POOL = PoolSpec(64, 32)
ONE = Request(0, 0, 5, 5)
LENGTHS = {"prompt_len": [1], "output_len": [1]}
SIMULATE = {
    "a policy that is nowhere": ({"policy": "pagd"}, "did you mean paged"),
    "a GPU that is nowhere": ({"gpu": "h100-80g"}, "did you mean h100-80gb"),
    "a model that is nowhere": ({"model": "opt-13"}, "did you mean opt-13b"),
    "a server that is nowhere": ({"server": "h20"}, "did you mean h200"),
    "a trace that is nowhere": ({"trace": "sharegt"}, "did you mean sharegpt"),
    "arrivals that are nowhere": ({"arrivals": "session"}, "did you mean sessions"),
    "an eviction order without a cache": ({"eviction": "arc"}, "eviction"),
    "a system that is nowhere": ({"system": "vllm-v9"}, "vllm"),
    "no policy at all": ({"policy": "null"}, "without a policy"),
    "a policy of a module that is nowhere": ({"policy": "nowhere_at_all:Policy"}, "nowhere_at_all"),
    "a class that a module has not": ({"policy": "json:Policy"}, "json.Policy"),
    "a class that is no policy": ({"policy": "json:JSONDecoder"}, "JSONDecoder"),
    "a class object that is no policy": ({"policy": int}, "policy is int"),
    "a number for a policy": ({"policy": 3}, "policy is int"),
    "a function that makes nothing": ({"policy": lambda pool: None}, "lambda"),
    "a parameter that a class has not": ({"policy": Paged, "policy.blok_size": 3}, "did you mean block_size"),
    "a parameter that a named class has not": (
        {"policy": "testbed.memory.paged.paged:Paged", "policy.blok_size": 3},
        "did you mean block_size",
    ),
    "a misspelt option": ({"rat": 1}, "did you mean rate?"),
    "a misspelt key": ({"policy.blok_size": 3}, "did you mean policy.block_size?"),
    "a negative rate": ({"rate": -1}, "arrivals.rate is -1"),
    "no number": ({"rate": float("nan")}, "arrivals.rate is nan"),
    "a word for a number": ({"rate": "fast"}, "fast"),
    "a negative duration": ({"duration_s": -1}, "duration_s is -1"),
    "half a seed": ({"seed": 1.5}, "seed"),
    "no sequences": ({"num_seqs": 0}, "num_seqs is 0"),
    "a word for a switch": ({"beam": "maybe"}, "beam is 'maybe'"),
    "an objective of nothing": ({"slo": {"ttft_s": 0}}, "slo.ttft_s is 0"),
    "objectives that are no mapping": ({"slo": 3}, "slo is 3"),
    "a window that ends before it begins": ({"window_s": (5, 1)}, "window_s is [5, 1]"),
    "blocks of nothing": ({"policy.block_size": 0}, "block_size is 0"),
    "half a GPU": ({"server.num_gpus": 0.5}, "num_gpus is 0.5"),
    "negative swap space": ({"swap_space_gib": -1}, "swap_space_gib is -1"),
    "a file that is nowhere": ({"trace": "csv", "trace.path": "nowhere.csv"}, "nowhere.csv: no such file"),
    "a trace without its file": ({"trace": "csv"}, "trace.path"),
    "sessions of lengths": ({"arrivals": "sessions", "trace": "sharegpt"}, "need a whole trace file"),
    "a list of numbers": ({"trace": [1, 2]}, "a list must hold"),
    "requests and a rate": ({"trace": [ONE], "rate": 1}, "rate does not go with a list"),
    "one request twice": ({"trace": [ONE, ONE]}, "same request_id"),
    "a request before time": ({"trace": [Request(0, -1, 5, 5)]}, "before 0"),
    "a prompt of nothing": ({"trace": [Request(0, 0, 0, 5)]}, "at least 1"),
    "a frame without prompts": ({"trace": pd.DataFrame({"prompt": [1]})}, "no column prompt_len"),
    "half a token": ({"trace": pd.DataFrame(LENGTHS | {"prompt_len": [1.5]})}, "whole numbers"),
    "no time": ({"trace": pd.DataFrame(LENGTHS | {"arrival_s": [None]})}, "arrival_s"),
    "a number for a scheduler": ({"scheduler": 3}, "scheduler is int"),
    "a scheduler that is made": (
        {"scheduler": ChunkedPrefill(Paged(POOL), Swap(), max_num_batched_tokens=64, max_num_seqs=4)},
        "give its class",
    ),
    "a rule of another kind": ({"preemption": Paged(POOL)}, "preemption is Paged"),
    "an order for a cost": ({"cost": Swap()}, "cost is Swap"),
    "an abstract class": ({"scheduler": Scheduler}, "Scheduler"),
    "a profile that is nowhere": ({"cost": "profile", "cost.path": "nope"}, "no profile nope"),
}
SWEEP = {
    "an axis without values": ({"policy": []}, "policy is an empty list"),
    "one wrong value of an axis": ({"policy": ["paged", "pagd"]}, "did you mean paged"),
    "a misspelt axis": ({"polcy": ["paged"]}, "did you mean policy?"),
    "one wrong number": ({"rate": [1, -1]}, "arrivals.rate is -1"),
    "no process": ({"rate": [1], "jobs": -1}, "jobs is -1"),
    "half a process": ({"rate": [1], "jobs": 0.5}, "jobs is 0.5"),
    "objects for a folder": ({"policy": [Paged], "folder": "runs"}, "no run folder can hold"),
}
CAPACITY = {
    "no objective": ({}, "no objective"),
    "a share of two": ({"ttft_s": 1, "share": 2}, "share is 2"),
    "guesses the wrong way round": ({"ttft_s": 1, "low": 3}, "low is 3"),
    "no precision": ({"ttft_s": 1, "precision": 0}, "precision is 0"),
    "a rate": ({"ttft_s": 1, "rate": 3}, "rate is what capacity looks for"),
    "a word for an objective": ({"ttft_s": "fast"}, "slo.ttft_s is 'fast'"),
    "out of reach": ({"ttft_s": 1e-9, "duration_s": 5}, "out of reach"),
    "a misspelt option": ({"ttft_s": 1, "polcy": "paged"}, "did you mean policy?"),
    "a list of requests": ({"tpot_s": 1, "trace": [ONE]}, "does not go with a list"),
}


def refused(call, options, culprit):
    with pytest.raises(InputError) as caught:
        call(**options)
    assert culprit in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", SIMULATE)
def test_simulate(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options, culprit = SIMULATE[kind]
    refused(front.simulate, options if "trace" in options else {"duration_s": 1, **options}, culprit)


@pytest.mark.parametrize("kind", SWEEP)
def test_sweep(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options, culprit = SWEEP[kind]
    refused(front.sweep, {"duration_s": 1, "jobs": 1, **options}, culprit)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", CAPACITY)
def test_capacity(kind):
    options, culprit = CAPACITY[kind]
    refused(front.capacity, options, culprit)


def test_capacity_refuses_a_rate_among_the_words():
    with pytest.raises(InputError, match="rate is what capacity looks for"):
        front.capacity("arrivals.rate=3", ttft_s=1)
