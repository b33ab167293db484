"""Python calls of the event loop: exact counts, which no other load of the machine changes."""

from random import Random

import pytest
from counted_calls import calls_of
from manual_driver import scheduler_of
from tiny import FastMillisecond

from testbed.core.request import PS, Request
from testbed.engine.recorder import Recorder
from testbed.engine.simulation import simulate
from testbed.memory.paged.paged_2023 import Paged2023
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.sched.mixed import Mixed2023
from testbed.sched.preemption import Recompute
from testbed.sched.vllm_v1 import VllmV1

LIMITS = {"max_num_batched_tokens": 2048, "max_num_seqs": 256}
V1 = {"long_prefill_token_threshold": 0, "scheduler_reserve_full_isl": True}
POOL = PoolSpec(1 << 14, 1 << 12)
SYSTEMS = {  # a scheduler, its policy, its limits, and the most calls a span
    "2023 system": (Mixed2023, Paged2023, LIMITS, 51),
    "vLLM V1": (VllmV1, OutputCaching, LIMITS | V1, 93),
    "2023 system, beams": (Mixed2023, Paged2023, LIMITS, 87),
    "2023 system, samples": (Mixed2023, Paged2023, LIMITS, 103),
}


def requests(name):
    random, at_ps, beam = Random(0), 0, name.endswith("beams")
    num_seqs, most = (4, 100) if "," in name else (1, 500)
    for i in range(50 if beam else 400):
        prompt_len, output_len = random.randint(1, most), random.randint(1, most)
        ids = tuple(range(i, i + prompt_len)) if name == "vLLM V1" else None
        lengths = prompt_len, output_len, num_seqs
        yield Request(i, at_ps, *lengths, beam=beam, prompt_ids=ids)
        at_ps += round(random.expovariate(10) * PS)


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_span_takes_few_calls(name):
    kind, policy, limits, most = SYSTEMS[name]
    scheduler = scheduler_of(kind, policy(POOL, 16), Recompute(), **limits)
    recorder, served = Recorder(), list(requests(name))
    arguments = served, scheduler, FastMillisecond(), POOL.max_len
    calls = calls_of(lambda: simulate(*arguments, recorder=recorder))
    spans = recorder.spans.columns()["iterations"]
    assert spans.sum() > 3 * len(spans) or "beams" in name
    assert calls <= most * len(spans), calls / len(spans)
