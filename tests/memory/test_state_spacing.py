"""Spaced states: what stays findable, and a public report of two long prompts that overfill a pool
with states every 1,616 tokens.
"""

import json
from functools import partial

import pytest
from refusals import refuses

from testbed.checks.fast_and_slow import differs
from testbed.core.layers import KvGroup
from testbed.experiments.runs.compose import configured
from testbed.memory.groups.grouped_caching import GroupedCaching
from testbed.memory.policy import PoolSpec
from testbed.run.simulate import run
from testbed.sched.chunked import ChunkedPrefill

PROMPT = 200_000
BLOCK = 1616  # tokens
RUN = (
    "model=qwen3.5-27b",
    "gpu=h200",
    "server.num_gpus=2",
    "server.kv_memory_gib={qwen3.5-27b: 60}",
    "policy=grouped_caching",
    "trace=mooncake",
    "trace.tokens_per_id=16",
    "arrivals=replay",
    "workload.max_len=262144",
    "cost=analytic",
    "scheduler=chunked",
)


def two_prompts_twice(folder):
    """A Mooncake trace: two prompts of their own content, and both again, one after the other."""
    path = folder / "trace.jsonl"
    rows = [
        {
            "timestamp": 200_000 * number,
            "input_length": PROMPT,
            "output_length": 4,
            "hash_ids": [number % 2 * PROMPT + i for i in range(PROMPT // 16)],
        }
        for number in range(4)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize(("spacing", "hits"), [(None, 0), (5 * BLOCK, PROMPT // 8080 * 8080)])
def test_two_long_prompts_overfill_a_pool_with_states_every_1616_tokens(tmp_path, spacing, hits):
    """A page of Qwen3.5-27B has 16 layers: 1,616 tokens of 4 KiB each, 101 MiB. A prompt has 124 of
    full attention, and three for each state: 124 x 3 states are 496 pages, 48.9 GiB a prompt, and
    24 x 3 are 196 pages, 19.3 GiB. A pool of 60 GiB holds two prompts of the second kind alone.
    """
    words = [
        *RUN,
        f"policy.block_size={BLOCK}",
        f"policy.state_spacing={'null' if spacing is None else spacing}",
        f"trace.path={two_prompts_twice(tmp_path)}",
    ]
    result = run(configured(tuple(words)))
    assert result.requests["hit_tokens"].tolist() == [0, 0, hits, hits]
    assert (result.summary["counters"]["evictions"] > 0) == (spacing is None)


def pool(*groups):
    return PoolSpec(1024, 256, layer_bytes=8, num_layers=2, groups=groups)


FULL = KvGroup("full", num_layers=1, slot_bytes=8)
STATE = KvGroup("state", num_layers=1, slot_bytes=0, window=None, state_bytes=64)


def test_a_spacing_that_ends_no_block_or_spaces_nothing_is_refused():
    refuses("multiple of block_size=16", GroupedCaching, pool(FULL, STATE), 16, state_spacing=24)
    refuses("no layers with states", GroupedCaching, pool(FULL), 16, state_spacing=32)


def test_fast_equals_slow_with_spaced_states():
    groups = (
        KvGroup("full", num_layers=1, slot_bytes=64),
        KvGroup("state", num_layers=3, slot_bytes=0, window=None, state_bytes=250),
    )
    small = PoolSpec(150, 64, layer_bytes=64, num_layers=1, groups=groups)
    make = partial(GroupedCaching, block_size=4, state_spacing=8)
    broken = differs(make, small, [ChunkedPrefill])
    assert broken is None, f"{broken}"
