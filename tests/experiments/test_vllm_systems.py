"""The presets of vLLM run under pressure, fast as slow, on a pool that is given in blocks."""

import json

import pytest
import yaml
from omegaconf import OmegaConf
from tiny_run import without_id

from experiments.runs.machine import make_machine
from experiments.runs.pool import make_pool

PACE = ("arrivals.rate=4", "arrivals.duration_s=20", "outputs=summary", "hydra.run.dir=out")
BLOCKS = ("server.num_blocks=300", "~server.kv_memory_gib")


def run(testbed, folder, *overrides):
    """The config and the summary of a run."""
    code, _, error = testbed("run", *overrides, *PACE, f"hydra.run.dir={folder}")
    assert code == 0, error
    return yaml.safe_load((folder / "config.yaml").read_text()), json.loads((folder / "summary.json").read_text())


@pytest.mark.parametrize("system", ["vllm-v0", "vllm-v1"])
def test_a_preset_runs_fast_as_slow_and_under_pressure(testbed, tmp_path, system):
    _, fast = run(testbed, tmp_path / "fast", f"+system={system}", *BLOCKS)
    _, slow = run(testbed, tmp_path / "slow", f"+system={system}", *BLOCKS, "fast_forward=false")
    assert without_id(fast) == without_id(slow)
    assert fast["requests"]["finished"] == fast["requests"]["arrived"] > 0
    assert fast["preemptions"]["recompute"] > 0


def test_vllm_v1_has_the_defaults_of_its_release(testbed, tmp_path):
    config, _ = run(testbed, tmp_path / "out", "+system=vllm-v1")
    assert config["scheduler"] == {
        "_target_": "testbed.sched.vllm_v1.AsyncVllmV1",
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 128,
        "long_prefill_token_threshold": 0,
        "scheduler_reserve_full_isl": True,
        "ignore_eos": True,
    }
    assert (config["policy"]["block_size"], config["policy"]["watermark"]) == (16, 0.0)


def test_what_else_would_have_done_is_an_override_away(testbed, tmp_path):
    other = ("policy.block_size=32", "policy.watermark=0.01", "eviction@policy.eviction=arc", "preemption=swap")
    run(testbed, tmp_path / "out", "+system=vllm-v1", "scheduler.ignore_eos=false", *other)
    run(testbed, tmp_path / "sync", "+system=vllm-v1", "scheduler=vllm_v1")


@pytest.mark.parametrize("size", [8, 16])
def test_so_many_blocks_are_so_many_slots(testbed, tmp_path, size):
    config, _ = run(testbed, tmp_path / "out", *BLOCKS, f"policy.block_size={size}")
    config = OmegaConf.create(config)
    assert make_pool(config, *make_machine(config)).num_slots == 300 * size


def test_vllm_v1_keeps_its_null_block(testbed, tmp_path):
    config, _ = run(testbed, tmp_path / "out", "+system=vllm-v1", *BLOCKS)
    config = OmegaConf.create(config)
    assert make_pool(config, *make_machine(config)).num_slots == 299 * 16


def test_content_of_a_csv_is_shared(testbed, tmp_path):
    lines = [f"64,4,{i},1 2 3 {9 + i}" for i in range(5)]
    (tmp_path / "t.csv").write_text("\n".join(["input_tokens,output_tokens,arrival_s,content_ids", *lines, ""]))
    trace = ("trace=csv", "trace.path=t.csv", "arrivals=replay", "+system=vllm-v1", "outputs=summary")
    code, _, error = testbed("run", *trace, "hydra.run.dir=out")
    assert code == 0, error
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["counters"]["hit_blocks"] == 4 * 3


def test_a_pool_in_gib_that_says_the_same_is_no_conflict(testbed, tmp_path):
    run(testbed, tmp_path / "out", "server.num_blocks=983")


@pytest.mark.parametrize(
    ("overrides", "culprits"),
    [
        (("server.num_blocks=900",), ["server.num_blocks is 900", "983 blocks", "~server.kv_memory_gib"]),
        (("server.num_blocks=0",), ["server.num_blocks is 0"]),
        (("server.num_blocks=9.5",), ["server.num_blocks is 9.5"]),
        (("server.num_blocks=many",), ["server.num_blocks is 'many'"]),
        (("server.num_blocks=9", "~policy.block_size"), ["block_size"]),
        (("server.num_blocks=1", "~server.kv_memory_gib", "null_blocks=1"), ["null_blocks is 1"]),
        (("null_blocks=half",), ["null_blocks is 'half'"]),
    ],
)
def test_a_pool_that_is_given_twice_or_not_in_blocks_is_refused(testbed, overrides, culprits):
    code, _, error = testbed("run", *overrides, *PACE)
    assert (code, error.count("\n")) == (2, 1)
    assert all(culprit in error for culprit in culprits), error
