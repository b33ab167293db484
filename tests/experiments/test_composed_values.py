"""Options composed once, with values set afterwards, are what Hydra composes from all words."""

from dataclasses import fields

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from refusals import check_words

from testbed.core.errors import InputError
from testbed.core.specs import TierSpec
from testbed.cost.model import Work
from testbed.experiments.runs import own_options
from testbed.experiments.runs.choice_names import CONF
from testbed.experiments.runs.compose import composed, configured, typed_config
from testbed.experiments.runs.words import read_words
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
    ["replicas=3", "gpu@2=l40s", "model=llama-3-8b", "gpu=h200"],
    ["+system=vllm-v1", "model=llama-3-8b", "gpu=h200", "+server.kv_memory_gib.x=1"],
    ["policy=example_policy:Slabs", "policy.slab_size=4"],
    ["+system=vllm-v1", "gpu=h200", "server={memory_utilization: 0.8}", "server.num_gpus=2"],
    ["+system=vllm-v1", "policy=tiered_exclusive", "load@policy.load=never"],
    ["policy=hicache", "scheduler=sglang"],  # each from another option of its group
    ["policy=paged", "+protocol=sosp23", "+system=orca-pow2", "policy=radix", "software=engine"],
    ["speculation=eagle", "acceptance@speculation.acceptance=markov", "model=opt-175b"],
    ["server=h200-x2", "gpu@server.gpu=l40s", "router=round_robin", "replicas=2"],
]


def by_hydra(words):
    """The composition by Hydra, with nothing of this project but its options; and its values."""
    own_options.register(CONF)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        composed_by_hydra = compose("run", [*words])
        return composed_by_hydra, OmegaConf.to_container(composed_by_hydra, resolve=True)


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_values_set_afterwards_are_those_that_hydra_sets(words):
    read = read_words(words)
    config = composed("run", words)
    assert (config, OmegaConf.to_container(config, resolve=True)) == by_hydra(
        [*read.choices, *read.values]
    )


def test_an_option_has_every_key_of_the_model_that_it_makes():
    dram = composed("run", WORDS[4]).server.tiers.dram
    assert set(dram) == {"_target_", *[field.name for field in fields(TierSpec)]}


WRONG = [
    ["arrivals.rat=3"],
    ["+arrivals.rate=3"],
    ["~policy.block"],
    ["policy.block_size.tokens=3"],
    ["arrivals.rate=1,2"],
    ["arrivals.rate=[1"],
]


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_words_that_hydra_refuses_are_refused(words):
    with pytest.raises(Exception, match=r"."):
        by_hydra(words)
    with pytest.raises(InputError):
        composed("run", words)


def test_a_pool_without_its_number_of_blocks_has_the_default():
    assert configured(("~server.num_blocks",)) == configured(())
    with pytest.raises(InputError):
        configured(("~server",))


def test_a_value_stays_with_its_own_configuration():
    first, second = composed("run", ["seed=5"]), composed("run", ["seed=6"])
    assert (first.seed, second.seed, composed("run", []).seed) == (5, 6, 0)


def test_a_value_that_follows_from_one_set_anew_is_computed_anew():
    config = composed("run", ["+system=vllm-v1", "model=llama-3-8b", "gpu=h200"])
    alone = typed_config(config, ())
    OmegaConf.update(config, "server.num_gpus", 2)
    both = typed_config(config, ())
    assert both.server.num_blocks > 2 * alone.server.num_blocks  # half of the weights on each


def test_a_value_that_setting_a_table_read_is_computed_anew():
    """Of vLLM's server with another utilization, before it has two GPUs."""
    words = ["+system=vllm-v1", "model=llama-3-8b", "gpu=h200"]
    config = composed("run", [*words, "server={memory_utilization: 0.8}", "server.num_gpus=2"])
    shown = OmegaConf.to_container(config, resolve=True)
    assert shown["server"]["num_blocks"] == typed_config(config, ()).server.num_blocks


def test_the_configuration_of_another_program_stays_as_it_is(tmp_path):
    """Hydra composes it in the same process."""
    composed("run", [])
    (tmp_path / "run.yaml").write_text("_target_: fractions.Fraction\n")
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        assert dict(compose("run")) == {"_target_": "fractions.Fraction"}


def write_policy(folder, text):
    (folder / "policy").mkdir()
    (folder / "policy" / "mine.yaml").write_text(text)
    return f"--config-dir={folder}"


def test_a_file_of_the_user_gets_the_defaults_of_its_class(tmp_path):
    folder = write_policy(tmp_path, "_target_: testbed.memory.paged.paged.Paged\nblock_size: 8\n")
    config = composed("run", [folder, "policy=mine", "policy.watermark=0.5"])
    assert dict(config.policy) == {
        "_target_": "testbed.memory.paged.paged.Paged",
        "block_size": 8,
        "watermark": 0.5,
    }


@pytest.mark.parametrize("text", ["- 1\n", "_target_: nowhere.Policy\n"])
def test_a_file_of_the_user_that_is_no_option_is_refused(tmp_path, text):
    with pytest.raises(InputError):
        composed("run", [write_policy(tmp_path, text), "policy=mine"])


def test_cfg_job_prints_what_hydra_composes(testbed):
    words = ["policy=prefix_caching", "policy.block_size=32"]
    printed = testbed.done("run", *words, "--cfg", "job")
    config, values = by_hydra(words)
    assert OmegaConf.create(printed) == config
    resolved = testbed.done("run", *words, "--cfg", "job", "--resolve")
    assert OmegaConf.to_container(OmegaConf.create(resolved)) == values


def test_config_name_is_a_primary_config_of_the_users_folder(testbed, tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "defaults: [run, override policy: prefix_caching, _self_]\narrivals: {rate: 3.5}\n"
    )
    words = ("run", "--config-dir", ".", "--config-name", "mine", "--cfg", "job")
    config = OmegaConf.create(testbed.done(*words, "policy.block_size=64"))
    assert (config.arrivals.rate, config.policy.block_size, config.policy.eviction["_target_"]) == (
        3.5,
        64,
        "testbed.memory.prefix_cache.eviction.lru.Lru",
    )
    error = testbed.refused("run", "--config-name", "mines")
    check_words(("mines",), error)


@pytest.mark.parametrize("model", ["opt-13b", "deepseek-v3"])
def test_software_time_of_ones_own_is_charged(model):
    """By a profile, and by a roofline if none is near."""
    work = Work(4, 400, 100, num_requests=4)
    usual, own = (
        cost_of(configured((f"model={model}", *more))).iteration(work)
        for more in ((), ("cost.software.overhead_s=1.2e-3",))
    )
    assert own - usual == 10**9  # 1.0 ms more than the system's 0.2 ms
