"""Bounds of a plan: no cost model that ships, and no simulation, goes beyond them."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.request import PS, Rows
from testbed.cost.model import Work
from testbed.experiments.plan.arithmetic import Arithmetic
from testbed.experiments.plan.bottlenecks import broken, strains
from testbed.experiments.plan.bounds import DECODE, DOES_NOT_FIT, MEMORY, PREFILL
from testbed.experiments.plan.demand import own_len
from testbed.experiments.plan.jobs import Outcome
from testbed.experiments.plan.question import Question
from testbed.experiments.plan.space import candidate_of, deployments
from testbed.experiments.plan.time_bounds import Machine
from testbed.experiments.runs.compose import configured
from testbed.run.config import Slo
from testbed.run.metrics import kept, latencies
from testbed.run.simulate import run

SERVERS = (  # measured, derived for another GPU, for another model, for fp8 K and V; a roofline
    "model=llama-3-8b gpu=h200 server.num_gpus=1",
    "model=opt-13b gpu=h200 server.num_gpus=1",
    "model=qwen2.5-0.5b gpu=h200 server.num_gpus=1",
    "model=llama-3-70b gpu=h200 server.num_gpus=4",
    "model=llama-3.1-8b gpu=l40s server.num_gpus=1",
    "model=llama-3.1-8b gpu=h100-80gb server.num_gpus=2",
    "model=llama-3.1-70b gpu=h100-80gb server.num_gpus=4",
    "model=llama-3-8b gpu=h200 server.num_gpus=1 ++model.kv_dtype_bytes=1",
    "model=llama-3-8b gpu=a100-80gb server.num_gpus=2 cost=analytic",
    "model=mixtral-8x7b gpu=h100-80gb server.num_gpus=4 cost=analytic",
)
TOKENS = st.integers(1, 4000)
PROMPTS = st.lists(st.tuples(TOKENS, st.integers(0, 4000)), max_size=4).map(tuple)


@cache
def machine_of(words):
    return Machine(configured(["+system=vllm-v1", *words.split()]))


@st.composite
def batches(draw):
    """Decodes and prompts of one iteration, at least one of either."""
    contexts = draw(st.lists(TOKENS, max_size=64))
    prefill = draw(PROMPTS if contexts else PROMPTS.filter(bool))
    longest = max(contexts, default=0)
    count = len(contexts) + len(prefill)
    return Work(len(contexts), sum(contexts), longest, prefill=prefill, num_requests=count)


@pytest.mark.parametrize("words", SERVERS)
@settings(max_examples=examples(25), deadline=None)
@given(work=batches())
def test_no_iteration_is_faster_than_its_bounds(words, work):
    """Those of its longest decode and of the shortest prompt, and those of the data sheet."""
    machine = machine_of(words)
    time_s = machine.cost.iteration(work) / PS
    if work.prefill:
        assert time_s >= machine.shortest_s
    if work.decode_seqs:
        assert time_s >= machine.step_s(work.decode_max_context)
    assert time_s >= machine.cost.least(work.num_tokens) / PS > 0
    if work.num_tokens <= machine.max_num_batched_tokens:
        assert time_s >= work.num_tokens * machine.token_s
    assert time_s >= machine.weights_s + work.decode_context * machine.context_s


LOADED = (  # at rates at which each is about full
    "model=opt-13b gpu=a100-40gb arrivals.rate=3",
    "model=llama-3-8b gpu=l40s arrivals.rate=15",
    "model=llama-3-8b gpu=h200 server.num_blocks=400 server.kv_memory_gib={} arrivals.rate=4",
    "model=llama-3-8b gpu=h200 replicas=2 scheduler.max_num_seqs=8 arrivals.rate=10",
    "model=llama-3-8b gpu=h200 replicas=2 prefill_replicas=1 scheduler=vllm_v1 arrivals.rate=10 "
    "handover=whole handover.bandwidth=1e9",
    "model=llama-3-8b gpu=h200 trace=random trace.prefix_len=512 trace.input_len=3000 "
    "trace.output_len=32 arrivals.rate=14",
    "model=llama-3-8b gpu=h200 trace=chat_histories trace.max_prompt=7000 arrivals.rate=10",
    "model=llama-3-8b gpu=h200 speculation=heads speculation.acceptance.rate=0.9 arrivals.rate=10",
    "model=opt-13b gpu=a100-40gb model.max_len=600 arrivals.rate=2",
    "model=llama-3-8b gpu=l40s replicas=2 gpu@1=h200 router=fewest_requests arrivals.rate=10 "
    "server.num_blocks=9000 +servers.1.num_blocks=50000",
)


@pytest.mark.parametrize("words", LOADED)
def test_no_bound_excludes_what_a_simulation_keeps(words):
    (deployment,) = deployments([*words.split(), "arrivals.duration_s=5"])
    candidate = candidate_of(deployment)
    result = run(candidate.config)
    times = latencies(result.recorder.requests)
    for percent in (1, 10, 50, 90, 100):
        limits = (float(np.percentile(times[name], percent)) for name in ("ttft_s", "tpot_s"))
        slo = Slo(*limits)
        share = float(kept(result.recorder.requests, slo, result.recorder.token_gaps()).mean())
        if share > 0:
            bounds = Arithmetic(Question(slo, share, (0,), 0.1)).bounds(candidate, 0, None)
            assert bounds.reason() is None


@pytest.mark.parametrize(
    ("slo", "rate", "words", "limit"),
    [
        (Slo(1e-4, None), 1.0, (), PREFILL),
        (Slo(None, 1e-4), 1.0, (), DECODE),
        (Slo(1.0, None), 1000.0, (), PREFILL),
        (Slo(1.0, None), 100.0, ("trace=random", "trace.prefix_len=256"), PREFILL),
        (Slo(1.0, 0.05), 100.0, (), MEMORY),
        (Slo(1.0, None), 1.0, ("model.max_len=64",), DOES_NOT_FIT),
    ],
)
def test_bounds_exclude_what_is_far_too_slow(slo, rate, words, limit):
    given = ["model=opt-13b", "gpu=a100-40gb", "arrivals.duration_s=20", *words]
    (deployment,) = deployments(given)
    candidate = candidate_of(deployment)
    arithmetic = Arithmetic(Question(slo=slo, share=0.9, seeds=(0, 1), precision=0.1))
    reason = arithmetic.reason(candidate, [(0, rate), (1, rate)])
    assert reason is not None
    assert reason.limit == limit


def test_a_limit_of_gaps_is_compared_with_the_longest_gap_of_each_request():
    words = (
        "model=opt-13b gpu=a100-40gb trace=random trace.input_len=1500 trace.output_len=64 "
        "arrivals.rate=3 arrivals.duration_s=10"
    )
    (deployment,) = deployments(words.split())
    summary = run(candidate_of(deployment).config).summary
    limit_s = (summary["itl_s"]["p90"] + summary["itl_max_s"]["p90"]) / 2
    assert summary["itl_s"]["p90"] < limit_s
    question = Question(slo=Slo(itl_s=limit_s), share=0.9, seeds=(0,), precision=0.1)
    outcome = Outcome(rate=None, seed=0, share_inside=0.0, summary=summary)
    ((work, ratio),) = strains(outcome, question)
    assert (work, ratio) == (DECODE, summary["itl_max_s"]["p90"] / limit_s)
    assert f"{summary['itl_max_s']['p90']:.3g} s of {limit_s:g} s" in broken([outcome], question)


def test_a_cache_has_only_what_another_prompt_begins_with():
    prompts = [(1, 2, 3), (1, 2, 4), (1, 5), (6, 7), (6, 7), ()]
    lengths = np.array([44, 48, 30, 32, 20, 7])
    rows = Rows(lengths, np.ones(6, int), prompt_ids=prompts, tokens_per_id=16)
    assert own_len(rows).tolist() == [12, 16, 14, 1, 1, 7]
    assert own_len(replace(rows, registered_prefix=5)).tolist() == [7, 11, 9, 1, 1, 2]
    assert own_len(replace(rows, prompt_ids=None)).tolist() == lengths.tolist()
