"""Options composed once, with values set afterwards, are what Hydra composes from all words."""

import pytest

from testbed.experiments.runs.compose import composed, hydra_config, register_models
from testbed.experiments.runs.overrides import normalize

WORDS = [
    ["arrivals.rate=3", "policy=contiguous_pow2", "seed=2"],
    ["policy=prefix_caching", "eviction@policy.eviction=arc", "policy.block_size=8"],
    ["policy.block_size=8", "policy.block_size=4"],
    ["+protocol=sosp23", "slo.ttft_s=1", "window_s=[0,30]"],
    ["policy=tiered", "+tier@server.tiers.dram=dram", "seed=1"],
    ["gpu=h200", "model=llama-3-8b", "model.max_len=4096", "server.num_gpus=2"],
    ["engine=gpu", "server=h200", "~server.kv_memory_gib"],
    ["server={num_gpus: 2}", "server.num_gpus=4"],
    ["slo={ttft_s: 4}", "++policy.block_size=4", "workload.mix=1:0.5,4:0.5"],
]


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_values_set_afterwards_are_those_that_hydra_sets(words):
    register_models()
    assert composed("run", tuple(words)) == hydra_config(normalize(words))


def test_a_value_stays_with_its_own_configuration():
    first, second = composed("run", ("seed=5",)), composed("run", ("seed=6",))
    assert (first.seed, second.seed, composed("run", ()).seed) == (5, 6, 0)
