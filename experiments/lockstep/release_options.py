"""Our configuration as vLLM's options; a part that vLLM does not have is refused by name."""

from dataclasses import dataclass

from testbed.build import Setup
from testbed.core.errors import InputError
from testbed.memory.paged.paged import Paged
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.output_caching import OutputCaching
from testbed.sched.preemption import Recompute, RecomputeSingleSwapGroup
from testbed.sched.vllm_v1 import AsyncVllmV1, VllmV1


@dataclass(frozen=True, slots=True)
class Options:
    """The names are vLLM's where it has one. num_blocks counts its null block; caches: enable_prefix_caching."""

    num_blocks: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int = 0
    enable_chunked_prefill: bool = True
    scheduler_reserve_full_isl: bool = True
    asynchronous: bool = False
    ignore_eos: bool = True
    caches: bool = False


def options_of(setup: Setup) -> Options:
    """The options of the same server. Raises InputError for a part or a value that vLLM V1 does not have."""
    _refuse(setup)
    scheduler, block_size = setup.config.scheduler.parameters, int(setup.config.policy.parameters["block_size"])
    same = ("max_num_seqs", "max_num_batched_tokens", "long_prefill_token_threshold", "enable_chunked_prefill",
            "scheduler_reserve_full_isl", "ignore_eos")  # fmt: skip
    return Options(
        num_blocks=setup.pool.num_slots // block_size + 1,
        block_size=block_size,
        max_model_len=setup.model.max_len,
        asynchronous=type(setup.scheduler) is AsyncVllmV1,
        caches=isinstance(setup.scheduler.policy, OutputCaching),
        **{name: scheduler[name] for name in same if name in scheduler},
    )


def _refuse(setup: Setup) -> None:
    config, policy = setup.config, setup.scheduler.policy
    name = type(policy).__name__
    for wrong, text in (
        (type(setup.scheduler) not in (VllmV1, AsyncVllmV1),
         f"scheduler={type(setup.scheduler).__name__}: is not vLLM's (scheduler=vllm_v1 or scheduler=vllm_v1_async)"),
        (type(policy) not in (Paged, OutputCaching),
         f"policy={name}: vLLM V1 has no such memory (policy=paged or policy=prefix_caching_v1)"),
        (config.policy.parameters.get("watermark", 0.01) != 0,
         f"policy.watermark={config.policy.parameters.get('watermark', 0.01):g}: vLLM V1 keeps no share of the pool "
         "free (policy.watermark=0)"),
        (type(setup.scheduler.preemption) not in (Recompute, RecomputeSingleSwapGroup),
         f"preemption={type(setup.scheduler.preemption).__name__}: vLLM V1 recomputes (preemption=recompute)"),
        (config.workload.num_seqs != 1 or config.workload.beam,
         f"workload.num_seqs={config.workload.num_seqs}: vLLM V1 schedules every sample as a request of its own "
         "(workload.num_seqs=1)"),
        (isinstance(policy, OutputCaching) and type(policy._cache.order) is not Lru,
         "policy.eviction: vLLM V1 evicts what was used least recently (eviction@policy.eviction=lru)"),
        (setup.workload.rows.registered_prefix != 0,
         "the trace has a registered prefix: vLLM V1 has none (another trace)"),
    ):  # fmt: skip
        if wrong:
            raise InputError(text)
