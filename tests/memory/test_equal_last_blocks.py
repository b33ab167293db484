"""A prompt of whole blocks computes its last block again: what becomes of the one that is cached.

vLLM keeps both until one of them is the least recently used, so that they take two blocks of the
pool for a time: prefix_caching_v1. prefix_caching keeps one. Of 60 prompts one after another, vLLM
0.19's own manager found in 300 traces what prefix_caching_v1 did.
"""

from inspect import signature
from random import Random

import pytest

from testbed.core.request import Incoming
from testbed.core.sequence import Sequence
from testbed.memory.policy import PoolSpec
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching

SIZE = 4
MAX_LEN = 4096


def prompt(story, num_tokens):
    return tuple(range(1000 * story, 1000 * story + num_tokens))


def blocks_found(kind, num_blocks, prompts):
    """The blocks that each prompt finds, one after another in one pool."""
    policy = kind(PoolSpec(num_blocks * SIZE, MAX_LEN), block_size=SIZE, watermark=0)
    num_found = []
    for i, tokens in enumerate(prompts):
        seq = Sequence(i, Incoming(i, 0, len(tokens), prompt_ids=tokens))
        (grant,) = policy.admit([seq], len(tokens))
        num_found.append(grant.num_cached // SIZE)
        seq.num_slots = seq.num_stored = len(tokens)
        policy.publish(seq, len(tokens))
        policy.release(seq)
    return num_found


def blocks_found_by_vllm(num_blocks, prompts):
    from testbed.experiments.real.lockstep import vllm_installation as vllm

    config = vllm.kv_cache_config(num_blocks + 1, SIZE)  # one is vLLM's null block
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    options = {"hash_block_size": SIZE, "scheduler_block_size": SIZE, "enable_caching": True}
    taken = options.keys() & signature(KVCacheManager).parameters
    manager = KVCacheManager(config, MAX_LEN, **{name: options[name] for name in taken})
    hasher, num_found = vllm.block_hasher(SIZE), []
    for i, tokens in enumerate(prompts):
        request = vllm.make_request(i, list(tokens), MAX_LEN, None, hasher)
        cached, num_cached = manager.get_computed_blocks(request)[:2]
        new = len(tokens) - num_cached
        assert manager.allocate_slots(request, new, num_cached, cached) is not None
        manager.free(request)
        num_found.append(num_cached // SIZE)
    return num_found


def test_the_second_copy_evicts_what_was_used_before():
    """Four blocks: x, then two of a; a again takes the last free one, so that d evicts x."""
    x, a, d = (prompt(1, SIZE), prompt(2, 2 * SIZE), prompt(3, SIZE))
    prompts = [x, a, a, d, (*x, 1)]
    assert blocks_found(OutputCaching, 4, prompts) == [0, 0, 1, 0, 0]
    assert blocks_found(PrefixCaching, 4, prompts) == [0, 0, 1, 0, 1]


def whole_prompts(random):
    return [prompt(random.randrange(4), SIZE * random.randint(1, 6)) for _ in range(60)]


@pytest.mark.parametrize("seed", range(20))
def test_vllms_manager_finds_what_prefix_caching_v1_does(seed):
    pytest.importorskip("vllm")
    random = Random(seed)
    num_blocks, prompts = random.randint(8, 24), whole_prompts(random)
    ours = blocks_found(OutputCaching, num_blocks, prompts)
    assert ours == blocks_found_by_vllm(num_blocks, prompts)
