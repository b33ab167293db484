"""Options composed once, with values set afterwards, are what Hydra composes from all words."""

import pytest
from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.types import RunMode
from omegaconf import OmegaConf

from testbed.cost.model import Work
from testbed.experiments.runs.choice_names import CONF
from testbed.experiments.runs.compose import composed, configured, hydra_config, register_models
from testbed.experiments.runs.kept_files import hydra_session
from testbed.experiments.runs.overrides import normalize
from testbed.run.machine import cost_of

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


def by_hydra(name, words):
    """What Hydra composes, with nothing of this project but its options; and its values."""
    register_models()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        composed_by_hydra = compose(name, words)
        return composed_by_hydra, OmegaConf.to_container(composed_by_hydra, resolve=True)


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_values_set_afterwards_are_those_that_hydra_sets(words):
    config = composed("run", tuple(words))
    assert (config, OmegaConf.to_container(config, resolve=True)) == by_hydra(
        "run", normalize(words)
    )


@pytest.mark.parametrize("name", ["figure/fig15", "gpu/h200"])
def test_files_read_once_are_those_that_hydra_reads_each_time(name):
    expected, _ = by_hydra(name, [])
    assert [composed(name, ()), hydra_config([], name)] == [expected, expected]


def test_points_composed_once_are_those_that_hydra_composes_each_time():
    register_models()
    with hydra_session() as hydra:
        loader = hydra.config_loader
        sweep = hydra.compose_config("run", ["policy=paged,tiered"], RunMode.MULTIRUN, False)
        for words in (["policy=paged"], ["policy=tiered", "seed=3"]):
            expected = ConfigLoaderImpl.load_sweep_config(loader, sweep, words)
            first, again = (loader.load_sweep_config(sweep, words) for _ in range(2))
            assert [first, again] == [expected, expected]
            again.seed = 4  # of one point, which the next of the same words does not have
            assert loader.load_sweep_config(sweep, words) == expected


def test_a_value_stays_with_its_own_configuration():
    first, second = composed("run", ("seed=5",)), composed("run", ("seed=6",))
    assert (first.seed, second.seed, composed("run", ()).seed) == (5, 6, 0)


@pytest.mark.parametrize("model", ["opt-13b", "deepseek-v3"])
def test_software_time_of_ones_own_is_charged(model):
    """By a profile, and by a roofline where none is near."""
    work = Work(4, 400, 100, num_requests=4)
    usual, own = (
        cost_of(configured((f"model={model}", *more))).iteration(work)
        for more in ((), ("cost.choices.overhead_s=1.2e-3",))
    )
    assert own - usual == 10**9  # 1.0 ms more than the system's 0.2 ms
