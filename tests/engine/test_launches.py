"""The host launches iterations with prompts while the iteration before computes; by hand."""

from functools import partial

import numpy as np
import pytest
from manual_driver import paged, scheduler_of
from tiny import MS

from testbed.core.errors import PlugInError
from testbed.core.request import Request
from testbed.cost.model import CostModel, Launch
from testbed.engine.recorder import request_columns
from testbed.engine.simulation import simulate
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute
from testbed.sched.vllm_v1 import AsyncVllmV1, VllmV1

RELEASE = {"long_prefill_token_threshold": 0, "scheduler_reserve_full_isl": True}
ASYNC = partial(AsyncVllmV1, ignore_eos=True, **RELEASE)
WAITS = partial(VllmV1, **RELEASE)


class Launched(CostModel):
    """Prompts compute for 8 ms and decodes for 7; the host launches prompts in `launch_ms`, and
    decodes in `decode_ms`, which the GPU has at once a millisecond before. A number of tokens with
    prompts takes `unseen_ms` longer the first time.
    """

    def __init__(self, launch_ms, decode_ms=0, unseen_ms=0):
        self.launch_ms, self.decode_ms, self.unseen_ms = launch_ms, decode_ms, unseen_ms

    def iteration(self, work):
        return 8 * MS if work.prefill else 7 * MS

    def launch(self, decode_seqs, num_prompts, prompt_tokens):
        if num_prompts:
            return Launch(0, self.launch_ms * MS, self.unseen_ms * MS)
        return Launch((self.decode_ms - 1) * MS, self.decode_ms * MS) if self.decode_ms else None


def served(arrivals_ms, cost, scheduler=ASYNC, **options):
    """Columns of requests of 4 + 20 tokens that arrive then."""
    requests = [
        Request(i, arrival_ps=ms * MS, prompt_len=4, output_len=20)
        for i, ms in enumerate(arrivals_ms)
    ]
    policy = paged(100, max_len=512)
    recorder = simulate(
        requests, scheduler_of(scheduler, policy, Recompute()), cost, 512, **options
    )
    return request_columns(recorder)


def first_tokens_ms(arrivals_ms, launch_ms, scheduler=ASYNC):
    """The times of such requests' first tokens."""
    columns = served(arrivals_ms, Launched(launch_ms), scheduler)
    return np.round(1000 * columns["first_token_s"], 3).tolist()


@pytest.mark.parametrize("scheduler", [MixedPrefill, ASYNC])
def test_a_lone_prompt_waits_for_its_launch_or_for_its_computation(scheduler):
    assert first_tokens_ms([0], 10, scheduler) == [10]
    assert first_tokens_ms([0], 3, scheduler) == [8]


def test_a_launch_hides_behind_the_iteration_before():
    """The second prompt is planned at 17 ms, begins at 24 and is launched at 27: it ends at 32."""
    assert first_tokens_ms([0, 11], 10) == [10, 32]


def test_a_number_of_tokens_takes_longer_the_first_time():
    """Four tokens alone, and much later once more."""
    columns = served([0, 1000], Launched(10, unseen_ms=3))
    assert columns["ttft_s"].tolist() == pytest.approx([0.013, 0.010])


def test_what_is_left_of_a_longer_launch_is_waited_for():
    """It is planned at 27 ms, begins at 34 and is launched at 47."""
    assert first_tokens_ms([0, 21], 20) == [20, 47]


def test_the_host_launches_one_iteration_after_the_other():
    """The third is planned when the second has been launched, at 47 ms, and is launched at 67. The
    second's token is read then too: the host reads results between launches.
    """
    assert first_tokens_ms([0, 21, 28], 20) == [20, 67, 67]


def test_without_plans_ahead_nothing_hides():
    """The second prompt is planned when the first decode has ended, at 17 ms."""
    assert first_tokens_ms([0, 11], 10, MixedPrefill) == [10, 27]


def test_the_decode_behind_a_prompt_waits_for_its_own_launch():
    """The prompt ends at 10 ms; the decode is launched from 10 to 14, when the prompt's token is
    read, and computes from 13 to 20. All later decodes are launched in time.
    """
    columns = served([0], Launched(10, decode_ms=4))
    assert columns["first_token_s"][0] == pytest.approx(0.014)
    assert columns["finish_s"][0] == pytest.approx(0.020 + 18 * 0.007)


def test_each_iteration_of_a_server_without_plans_ahead_waits_for_its_launch():
    """As in vLLM's EngineCore.step, which plans when the results are in: the GPU has the first of a
    decode after 3 ms and computes for 7, and nothing of that hides.
    """
    columns = served([0], Launched(10, decode_ms=4), WAITS)
    assert columns["first_token_s"][0] == pytest.approx(0.010)
    assert columns["finish_s"][0] == pytest.approx(0.010 + 19 * (0.003 + 0.007))


@pytest.mark.parametrize("scheduler", [ASYNC, WAITS])
def test_steps_and_spans_are_equal(scheduler):
    arrivals = [0, 11, 12, 40, 95, 96, 200]
    for cost in (Launched(10, 4), Launched(3, 2), Launched(30, 7), Launched(10, 4, 3)):
        in_spans = served(arrivals, cost, scheduler)
        one_by_one = served(arrivals, cost, scheduler, fast_forward=False)
        for name, column in in_spans.items():
            np.testing.assert_array_equal(column, one_by_one[name], err_msg=name)


def test_decodes_that_are_launched_longer_than_they_compute_are_refused():
    with pytest.raises(PlugInError, match=r"Launched answered .* no longer than"):
        served([0], Launched(10, decode_ms=8))


@pytest.mark.parametrize("launch_ms", [-1, 0.5])
def test_a_launch_of_no_whole_picoseconds_is_refused(launch_ms):
    with pytest.raises(PlugInError, match="launch"):
        first_tokens_ms([0], launch_ms)
