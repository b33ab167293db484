"""`capacity` and `plan` against plain loops of `simulate` over rates and deployments."""

import random
from math import inf, log
from pathlib import Path

import pytest

import testbed
from testbed.experiments.plan.deployment_plan import Request, planned
from testbed.experiments.plan.prices import Prices
from testbed.experiments.plan.rows import rows_of

PRECISION = 0.25
MODELS = ("llama-3.1-8b", "qwen2.5-7b", "llama-3-8b", "qwen3-8b")
SLOS = ({"ttft_s": 1}, {"ttft_s": 2, "tpot_s": 0.05}, {"e2e_s": 4}, {"ttft_s": 1, "itl_s": 0.3})


def drawn(rng):
    """The words of a server and its load, the objectives, and the share that must keep them."""
    words = (
        f"model={rng.choice(MODELS)}",
        "model.max_len=8192",
        "+system=vllm-v1",
        f"scheduler.max_num_seqs={rng.choice((8, 32, 128))}",
        f"scheduler.max_num_batched_tokens={rng.choice((1024, 2048, 8192))}",
        "cost.iterations=null",
        "trace=random",
        f"trace.input_len={rng.choice((1000, 2000))}",
        f"trace.output_len={rng.choice((20, 60))}",
        "trace.input_ratio=0.5",
        "arrivals.duration_s=8",
    )
    return words, rng.choice(SLOS), rng.choice((0.5, 0.8, 0.95))


def share_inside(words, slo, rate, seed):
    """The share of the requests of one run that keep the objectives, counted one by one."""
    run = testbed.simulate(*words, rate=rate, seed=seed)
    return sum(keeps(row, slo) for row in run.requests.itertuples()) / len(run.requests)


def keeps(row, slo):
    later_s = (row.finish_s - row.first_token_s) / max(row.output_len - 1, 1)
    times_s = {
        "ttft_s": row.first_token_s - row.arrival_s,
        "tpot_s": later_s,
        "e2e_s": row.finish_s - row.arrival_s,
        "itl_s": row.itl_max_s,
    }
    return all(times_s[name] <= limit_s + 1e-9 for name, limit_s in slo.items())


@pytest.mark.parametrize("seed", range(3))
def test_the_capacity_is_the_last_rate_of_a_loop_that_keeps_the_objectives(seed):
    words, slo, share = drawn(random.Random(seed))
    words = (*words, "gpu=l40s")
    found = testbed.capacity(
        *words, **slo, share=share, low=2, high=8, precision=PRECISION, seed=seed
    )
    for rate, inside, _ in found.points:
        assert share_inside(words, slo, rate, seed) == pytest.approx(inside)
    missed = [rate for rate, inside, _ in found.points if inside < share and rate > found.rate]
    assert min(missed) <= (1 + PRECISION) * found.rate * 1.001  # rates have four digits
    factors = (0.4, 0.6, 1, 2)  # near the answer a rate may keep them and a lower one not
    keeping = [share_inside(words, slo, factor * found.rate, seed) >= share for factor in factors]
    assert keeping == [True, True, True, False]


@pytest.mark.parametrize(("seed", "rate"), [(0, None), (2, 6.0)])
def test_the_plan_is_the_cheapest_of_a_loop_over_deployments(tmp_path, seed, rate):
    rng = random.Random(seed)
    words, slo, share = drawn(rng)
    prices = {gpu: rng.uniform(0.5, 4) for gpu in rng.sample(("l4", "l40s", "a100-80gb"), 2)}
    asked = [*words, f"gpu={','.join(prices)}", "server.num_gpus=1,2"]
    asked += [f"slo.{name}={limit}" for name, limit in slo.items()]
    asked += [] if rate is None else [f"arrivals.rate={rate}"]
    of = Prices(Path("drawn"), "2026-11-29", "USD", prices)
    plan = planned(
        Request(tuple(asked), share, (0,), PRECISION, None, of, tmp_path), lambda _: None
    )
    costs = {}
    for gpu, hourly in prices.items():
        for number in (1, 2):
            server = (*words, f"gpu={gpu}", f"server.num_gpus={number}")
            costs[gpu, str(number)] = cost(server, slo, share, rate, number * hourly)
    first = rows_of(plan)[0]
    named = first.deployment["gpu"], first.deployment["server.num_gpus"]
    if rate is None:
        assert costs[named] <= min(costs.values()) * (1 + PRECISION) ** 2
        assert abs(log(first.per_million_requests / costs[named])) < log(1 + PRECISION)
    else:
        assert (first.hourly, costs[named]) == (min(costs.values()),) * 2


def cost(server, slo, share, rate, hourly):
    """The cost of an hour if the rate keeps the objectives, or that of a million requests at the
    last of rising rates that does; infinite if none does.
    """
    if rate is not None:
        return hourly if share_inside(server, slo, rate, seed=0) >= share else inf
    highest, rate = 0.0, 0.5
    while share_inside(server, slo, rate, seed=0) >= share:
        highest, rate = rate, rate * (1 + PRECISION)
    return hourly / highest / 3600 * 1e6 if highest else inf
