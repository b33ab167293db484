"""Every value of a configuration is read, refused, or of something that the run does not have; and
changes of the input that mean nothing change nothing.
"""

import json
import random

import pytest

from testbed import simulate
from testbed.core.errors import InputError
from testbed.core.request import Request
from testbed.experiments.runs.compose import configured
from testbed.run.simulate import run

RUNS = {
    "derived costs": (),
    "vLLM V1": ("+system=vllm-v1",),
    "roofline": ("cost=analytic", "slo.ttft_s=0.1"),
    "windows": ("model=gemma-3-27b", "policy=grouped"),
}
SHORT = ("arrivals.duration_s=8", "arrivals.rate=3")
NOT_THERE = {  # in these runs
    "model.max_len": "no request is as long",
    "server.gpu.host_bandwidth": "nothing is swapped",
    "server.gpu.link_bandwidth": "there is one GPU",
    "server.kv_memory_gib": "the pool of another model",
    "policy.watermark": "the pool is not full",
    "scheduler.": "no limit is reached",
    "cost.choices.block_size": "the times of a roofline do not depend on it",
    "cost.choices.repeated_read": "nothing is shared",
    "cost.software.sequences_per_fork": "nothing forks",
    "cost.source.": "its best rates count, as the profile has them",
    "cost.roofline.": "of windows, all-reduces, copies and shared blocks",
    "cost.efficiencies.": "of windows, all-reduces, copies and shared blocks",
    "software.sequences_per_fork": "nothing forks",
    "beams.": "there are no beams",
    "swap_space_gib": "nothing is swapped",
    "fast_forward": "fast equals slow",
}


def leaves(values, key=""):
    """The dotted keys of numbers and truth values."""
    for name, value in values.items():
        place = f"{key}.{name}".removeprefix(".")
        if isinstance(value, dict):
            yield from leaves(value, place)
        elif isinstance(value, bool | int | float):
            yield place, value


def another(value):
    if isinstance(value, bool):
        return str(not value).lower()
    return value * 2 if value else 1


def numbers_of(words):
    """The results of a run as text; None if it is refused."""
    try:
        summary = run(configured(words)).summary
    except InputError:
        return None
    results = {key: value for key, value in summary.items() if key not in ("run", "cost_profile")}
    return json.dumps(results, sort_keys=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_no_value_is_silently_unread(name):
    words = (*RUNS[name], *SHORT)
    before = numbers_of(words)
    unread = []
    for key, value in leaves(configured(words).values):
        others = [word for word in words if not word.startswith(f"{key}=")]
        if numbers_of((*others, f"{key}={another(value)}")) == before:
            unread.append(key)
    assert [key for key in unread if not key.startswith(tuple(NOT_THERE))] == []


def requests_of(seed):
    """Requests that share beginnings, some of which come together."""
    draw = random.Random(seed)
    stories = [[draw.randrange(10**6) for _ in range(300)] for _ in range(3)]
    arrival_ps = 0
    for i in range(30):
        arrival_ps += draw.choice([0, draw.randrange(4 * 10**11)])
        prompt_len = draw.randint(1, 300)
        shared = draw.randint(0, prompt_len)
        own = [10**6 + 1000 * i + k for k in range(prompt_len - shared)]
        ids = (*draw.choice(stories)[:shared], *own)
        yield Request(i, arrival_ps, prompt_len, draw.randint(1, 100), prompt_ids=ids)


POOL = ("server=h200", "model=llama-3.1-8b", "model.max_len=640", "~server.kv_memory_gib")
TIMES = ["request_id", "first_token_s", "finish_s", "ttft_s", "e2e_s"]


def served(words, requests):
    return simulate(*POOL, "server.num_blocks=160", *words, trace=requests)


def with_other_ids(words, requests, first):
    """Other ids of the same contents."""
    renamed = [r._replace(prompt_ids=tuple(3 * i + 11 for i in r.prompt_ids)) for r in requests]
    other = served(words, renamed)
    assert other.requests.equals(first.requests)
    assert other.summary["counters"] == first.summary["counters"]


def with_a_later_request(words, requests, first):
    """A request when all have ended."""
    later_ps = int(first.summary["simulated_s"] * 1e12) + 10**12
    later = Request(
        len(requests), arrival_ps=later_ps, prompt_len=50, output_len=5, prompt_ids=(1,) * 50
    )
    longer = served(words, [*requests, later])
    before = longer.requests[longer.requests["request_id"] < len(requests)]
    assert before[TIMES].equals(first.requests[TIMES])


def in_a_fleet_of_one(words, requests, first):
    alone = served((*words, "replicas=1"), requests)
    assert alone.requests[TIMES].equals(first.requests[TIMES])


POLICIES = ["paged", "prefix_caching", "prefix_caching_v1", "tiered"]
SCHEDULERS = ["chunked", "mixed", "separate"]
CHANGES = [with_other_ids, with_a_later_request, in_a_fleet_of_one]


@pytest.mark.parametrize(  # every pair of a policy, a scheduler and a change
    ("policy", "scheduler", "change"),
    [
        (policy, scheduler, CHANGES[(row + column) % len(CHANGES)])
        for row, policy in enumerate(POLICIES)
        for column, scheduler in enumerate(SCHEDULERS)
    ],
)
def test_changes_without_a_meaning_change_nothing(policy, scheduler, change):
    tier = ("+tier@server.tiers.dram=dram",) if policy == "tiered" else ()
    words = (f"policy={policy}", f"scheduler={scheduler}", *tier)
    requests = list(requests_of(seed=len(policy)))
    change(words, requests, served(words, requests))
