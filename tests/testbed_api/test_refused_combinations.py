"""Values that are right alone and mean nothing together: the key and the value of the refusal."""

import pytest

from testbed import simulate
from testbed.core.errors import InputError
from testbed.fleet.routers.round_robin import RoundRobin
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.sched.beam_search import BeamModel

SHORT = {"rate": 2, "duration_s": 10}
DRAFTS = "speculation=ngram"
GIVEN = ["server.num_blocks=100", "~server.kv_memory_gib"]
LLAMAS = ["model=llama-3.2-3b", *GIVEN]


class Recorded(BeamModel):
    """Beams of a user."""

    def parents(self, request, num_generated):
        raise NotImplementedError


def made_otherwise(pool):
    """Makes an object of another kind than its place has."""
    return Recorded()


COMBINATIONS = {
    "beams without beam search": ([], {"beams": Recorded}, "beams", "Recorded"),
    "a policy that is none": ([], {"policy": made_otherwise}, "policy", "Recorded"),
    "a scheduler's class as a policy": ([], {"policy": Recorded}, "policy", "Recorded"),
    "two pools": (["server.num_blocks=100"], {}, "server.num_blocks", "100"),
    "states without a policy of groups": (
        ["model=qwen3.5-9b", "gpu=h200"],
        {"policy": "paged"},
        "model",
        "qwen3.5-9b",
    ),
    "a pool beyond the memory": (
        ["server.num_blocks=9000000", "~server.kv_memory_gib"],
        {},
        "server.num_blocks",
        None,
    ),
    "a share of the memory beside a pool": (
        [*GIVEN, "server.memory_utilization=0.5"],
        {},
        "server.memory_utilization",
        "0.5",
    ),
    "another machine's pool": (["server.num_gpus=2"], {}, "server.kv_memory_gib", None),
    "swapping without a host": (
        ["preemption=swap", "swap_space_gib=0"],
        {},
        "preemption",
        "swap",
    ),
    "swapping by a policy without moves": (
        ["preemption=swap"],
        {"policy": "contiguous_max"},
        "preemption",
        "swap",
    ),
    "a tier with the device's name": (
        ["+tier@server.tiers.device=dram"],
        {"policy": "tiered"},
        "server.tiers.device",
        None,
    ),
    "a time to live of what is never found": (
        ["order=time_to_live"],
        {"policy": "paged"},
        "order",
        "time_to_live",
    ),
    "a time window that ends before it starts": (
        ["window_s=[5,2]"],
        {},
        "window_s",
        "[5, 2]",
    ),
    "a release that nothing follows": (
        ["release='0.28'"],
        {"scheduler": "mixed", "policy": "paged"},
        "release",
        "0.28",
    ),
    "drafts of several engines": ([DRAFTS, "replicas=2"], {}, "replicas", "2"),
    "drafts of an oracle": ([DRAFTS], {"policy": "contiguous_oracle"}, "speculation", None),
    "drafts of a model with windows": (
        [DRAFTS, "model=gemma-2-2b"],
        {"policy": "grouped"},
        "speculation",
        None,
    ),
    "a limit of latency in a closed loop": (
        ["arrivals=closed_loop", "stop_at_latency=1"],
        {},
        "stop_at_latency",
        None,
    ),
    "a latency limit of several engines": (
        ["replicas=2", "stop_at_latency=1"],
        {},
        "replicas=2",
        None,
    ),
    "a server for an engine that is not there": (
        ["replicas=2", "gpu@2=h200"],
        {},
        "servers.2",
        None,
    ),
    "samples at prefill engines": (
        ["replicas=2", "prefill_replicas=1", "workload.mix=1:0.5,2:0.5"],
        {"scheduler": "mixed", "policy": "paged"},
        "prefill_replicas=1",
        None,
    ),
    "ahead at prefill engines": (
        ["replicas=2", "prefill_replicas=1"],
        {"scheduler": "vllm_v1_async", "policy": "paged"},
        "prefill_replicas=1",
        None,
    ),
    "one router's object at prefill engines": (
        ["replicas=2", "prefill_replicas=1"],
        {"router": RoundRobin(), "scheduler": "mixed", "policy": "paged"},
        "prefill_replicas=1",
        None,
    ),
    "a registered prefix at prefill engines": (
        ["replicas=2", "prefill_replicas=1", "trace=wmt_1shot"],
        {"scheduler": "mixed", "policy": "paged"},
        "prefill_replicas=1",
        None,
    ),
    "one policy's object for several engines": (
        ["replicas=2"],
        {"policy": Paged(PoolSpec(1600, 256))},
        "replicas=2",
        None,
    ),
    "drafts above a tier": (
        [DRAFTS, "+tier@server.tiers.dram=dram"],
        {"policy": "tiered"},
        "server.tiers",
        None,
    ),
    "slots taken back of a whole reservation": (
        [DRAFTS, "speculation.keeps_slots=false"],
        {"policy": "contiguous_max", "scheduler": "vllm_v1"},
        "scheduler: speculation.keeps_slots",
        "false",
    ),
    "drafts of the CPU ahead of their results": (
        [DRAFTS],
        {"policy": "paged", "scheduler": "vllm_v1_async"},
        "scheduler: speculation",
        None,
    ),
    "drafts left out ahead of their results": (
        ["speculation=heads", "speculation.off_above=4"],
        {"policy": "paged", "scheduler": "vllm_v1_async"},
        "scheduler: speculation.off_above",
        None,
    ),
    "slots taken back ahead of the results": (
        ["speculation=heads", "speculation.keeps_slots=false"],
        {"policy": "paged", "scheduler": "vllm_v1_async"},
        "scheduler: speculation.keeps_slots",
        "false",
    ),
    "a drafter's batch that takes all tokens": (
        [
            "speculation=draft_model",
            *LLAMAS,
            "release='0.19'",
            "scheduler.max_num_batched_tokens=64",
            "scheduler.max_num_seqs=64",
        ],
        {"policy": "paged", "scheduler": "vllm_v1"},
        "scheduler.max_num_batched_tokens",
        "64",
    ),
    "a drafter of other tokens": (
        ["speculation=draft_model"],
        {"policy": "paged", "scheduler": "vllm_v1"},
        "speculation.drafter",
        "llama-3.2-1b",
    ),
    "blocks of a policy without a size of them": (
        GIVEN,
        {"policy": lambda pool: Paged(pool)},
        "server.num_blocks",
        "100",
    ),
}
SAID_ALL = {  # by their problem
    "a share of the memory beside a pool",
    "a time window that ends before it starts",
    "blocks of a policy without a size of them",
}


@pytest.mark.parametrize("case", COMBINATIONS)
def test_the_key_and_the_value_of_what_does_not_go_together(case):
    overrides, options, key, value = COMBINATIONS[case]
    with pytest.raises(InputError) as caught:
        simulate(*overrides, **({} if "closed" in case else SHORT), **options)
    refusal = caught.value
    assert (refusal.key, refusal.value) == (key, value)
    assert refusal.problem
    assert bool(refusal.remedy) is (case not in SAID_ALL)
