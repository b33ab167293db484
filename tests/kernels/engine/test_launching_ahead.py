"""Iterations that are launched while another runs bring the tokens and take the decisions of those
that are launched one after the other.
"""

import itertools
from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import tiny_models as tiny  # noqa: E402

from testbed.core.request import Request  # noqa: E402
from testbed.engine.wall_clock import StepClock, WallClock  # noqa: E402
from testbed.kernels.engine.sampler import TopP  # noqa: E402
from testbed.memory.paged.paged import Paged  # noqa: E402
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching  # noqa: E402
from testbed.sched.preemption import Recompute, Swap  # noqa: E402
from testbed.sched.vllm_v1 import AsyncVllmV1  # noqa: E402

LENGTHS = [(5, 9), (17, 4), (1, 12), (30, 3), (8, 20), (16, 7), (33, 2), (3, 1)]
LONG = [(9, 20), (8, 21), (10, 19), (7, 22)]


def ahead(policy, rule=Recompute, ignore_eos=True, budget=24):
    return AsyncVllmV1(
        policy,
        rule(),
        max_num_batched_tokens=budget,
        max_num_seqs=16,
        ignore_eos=ignore_eos,
        long_prefill_token_threshold=0,
        scheduler_reserve_full_isl=True,
    )


def engine(policy, scheduler, spec=None, **options):
    return tiny.engine("llama", policy, scheduler, spec, debug=False, **options)


def served(requests, *make, launched_behind=None, **options):
    """The outputs, and the work of every iteration."""
    built = engine(*make, **options)
    launch, executor = built.runner.launch, built.executor

    def watched(plan):
        launched_behind.append(bool(executor._launched))
        return launch(plan)

    if launched_behind is not None:
        built.runner.launch = watched
    records = built.serve(requests)
    assert records.recorder.totals.finished == len(requests)
    assert not built.runner.token_buffers.tokens
    return records.outputs, [iteration.work for iteration in records.iterations], records


def equal_both_ways(requests, *make, **options):
    """Serve both ways; returns the records of the fast one."""
    behind = []
    outputs, works, records = served(requests, *make, launched_behind=behind, **options)
    plain = served(requests, *make, launches_ahead=False, **options)
    assert (outputs, works) == plain[:2]
    assert sum(behind) > len(behind) / 2  # most were launched while another ran
    return records


@pytest.mark.parametrize("ignore_eos", [True, False])
@pytest.mark.parametrize("policy", [Paged, partial(PrefixCaching, block_size=4)])
def test_planning_ahead_computes_equal_tokens_of_prompts_chunks_and_decodes(policy, ignore_eos):
    equal_both_ways(tiny.requests(LENGTHS), policy, partial(ahead, ignore_eos=ignore_eos))


@pytest.mark.parametrize("rule", [Recompute, Swap])
def test_planning_ahead_computes_equal_tokens_with_preemptions(rule):
    policy, small = partial(Paged, block_size=4), tiny.pool(64, 256)
    records = equal_both_ways(tiny.requests(LONG), policy, partial(ahead, rule=rule), small)
    assert records.recorder.totals.swaps + records.recorder.totals.recomputes >= 2


def test_planning_ahead_samples_equal_tokens():
    equal_both_ways(tiny.requests(LENGTHS, 3), Paged, ahead, parallel=TopP(0.8, 0.9, seed=5))


def test_a_request_that_is_cancelled_while_its_step_is_under_way():
    requests = [
        Request(0, arrival_ps=0, prompt_len=5, output_len=30),
        Request(1, arrival_ps=0, prompt_len=6, output_len=8),
    ]
    outputs = []
    for launches_ahead in (True, False):
        built = engine(Paged, ahead, clock=StepClock(), launches_ahead=launches_ahead)
        built.clock.call_at(7 * 10**12, lambda built=built: built.engine.cancel(0))
        records = built.serve(requests)
        assert records.recorder.totals.cancelled == 1
        assert not built.runner.token_buffers.tokens
        outputs.append(records.outputs)
    assert outputs[0] == outputs[1]
    assert outputs[0].keys() == {1}


def test_the_debug_mode_launches_one_after_the_other():
    behind = []
    built = tiny.engine("llama", Paged, ahead, debug=True)
    launch = built.runner.launch
    built.runner.launch = lambda plan: behind.append(len(built.executor._launched)) or launch(plan)
    built.serve(tiny.requests(LENGTHS))
    assert not any(behind)


@pytest.mark.parametrize("launches_ahead", [True, False])
def test_an_iteration_begins_when_the_one_before_has_ended(launches_ahead):
    after_a_pause = Request(1, arrival_ps=10**11, prompt_len=9, output_len=8)
    requests = [*tiny.requests(LENGTHS)[:1], after_a_pause]
    clock = WallClock()
    built = engine(Paged, ahead, clock=clock, launches_ahead=launches_ahead)
    ones = built.serve(requests).iterations
    pauses = [
        later.start_s - (one.start_s + one.duration_s) for one, later in itertools.pairwise(ones)
    ]
    assert sum(abs(pause_s) > 1e-9 for pause_s in pauses) <= 1  # the engine may have slept
    for one in ones:
        assert one.host_s + one.waited_s == pytest.approx(one.duration_s)
        assert one.waited_s >= 0
        assert one.launch_s > 0
