"""Remarks on prefix caches that differ and find the same."""

import pytest

from testbed.experiments.runs.equal_caches import remark_on_caches

SMALL, LARGE = {"policy": "Cache", "pool_slots": 1000}, {"policy": "Cache", "pool_slots": 4000}
BELOW = {"policy": "Offloading", "pool_slots": 1000}


def run(description, hit_tokens=50, **counters):
    return {"run": description, "counters": {"tokens": 100, "hit_tokens": hit_tokens, **counters}}


def remarks(first, second):
    return [*remark_on_caches({"a": [first], "b": [second]})]


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (run(SMALL, evictions=0), run(LARGE, evictions=0), "none evicts a block"),
        (run(SMALL, evictions=7), run(LARGE, evictions=0), "no later prompt asks for the 7 blocks"),
        (run(SMALL, evictions=7), run(BELOW, evictions=7, evicted_below=0), "asks for the 7"),
        (run(SMALL, 0, evictions=0), run(LARGE, 0, evictions=0), "no prompt begins as"),
    ],
)
def test_caches_that_find_the_same_have_a_reason(first, second, said):
    (remark,) = remarks(first, second)
    assert remark.startswith("a; b: ")
    assert said in remark


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (run(SMALL, 40, evictions=7), run(LARGE, evictions=0)),  # they find unlike shares
        (run(SMALL, evictions=7), run(LARGE, evictions=3)),  # both may lose what is asked for
        (run(SMALL, evictions=7), run(BELOW, evictions=7, evicted_below=1)),
        (run(SMALL, evictions=0), run(SMALL, evictions=0)),  # one cache
        ({"run": SMALL, "counters": {}}, {"run": LARGE, "counters": {}}),  # none
    ],
)
def test_no_reason_is_given_of_which_nothing_is_known(first, second):
    assert not remarks(first, second)


def test_a_sweep_over_pools_says_why_they_find_the_same(testbed):
    pools = ("policy=prefix_caching", "model=llama-3-8b", "server.num_blocks=2000,8000")
    load = ("arrivals.duration_s=5", "trace=chat_histories", "trace.max_prompt=1000")
    code, printed, _ = testbed("run", "-m", *pools, *load)
    assert code == 0
    assert "server.num_blocks=2000; server.num_blocks=8000: the caches find the same" in printed
