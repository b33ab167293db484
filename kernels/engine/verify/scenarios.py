"""Runs that together take every path of the engine: each has a policy, a scheduler, a pool and requests."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from testbed.core.request import Request
from testbed.memory.contiguous.contiguous import ContiguousMax, ContiguousOracle, ContiguousPow2
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import MemoryPolicy, PoolSpec, host
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import PreemptionRule, Recompute, Swap
from testbed.sched.scheduler import Scheduler

MAX_LEN = 512  # of prompt and output together
ROOMY, TIGHT = 64 * MAX_LEN, 512  # slots of a pool that holds everything, and of one that makes them preempt


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run; `happened` says what it must have led to: "swaps", "recomputes", "hits", "copies" or nothing."""

    name: str
    policy: Callable[[PoolSpec], MemoryPolicy]
    num_slots: int = ROOMY
    rule: Callable[[], PreemptionRule] = Recompute
    chunked: bool = False
    num_seqs: int = 1
    beam: bool = False
    num_requests: int = 64
    common: int = 0
    happened: str = ""

    def pool(self) -> PoolSpec:
        """The device's pool, and a host pool that is large enough."""
        return PoolSpec(self.num_slots, MAX_LEN, host(ROOMY))

    def scheduler(self, policy: MemoryPolicy) -> Scheduler:
        """Who runs when."""
        if self.chunked:
            return ChunkedPrefill(policy, self.rule(), max_num_batched_tokens=96, max_num_seqs=64)
        return MixedPrefill(policy, self.rule(), max_num_batched_tokens=2048, max_num_seqs=64)

    def requests(self, vocab_size: int, seed: int = 0) -> list[Request]:
        """Ragged prompts of 1 to 200 tokens, the first `common` the same in all; outputs of 4 to 24."""
        rng = np.random.default_rng([seed, 5])
        shared = rng.integers(vocab_size, size=self.common).tolist()
        found = []
        for i in range(self.num_requests):
            own = rng.integers(vocab_size, size=max(1, int(np.exp(rng.uniform(0, np.log(200)))))).tolist()
            ids, output_len = tuple(shared + own), int(rng.integers(4, 25))
            found.append(Request(i, i * 10**11, len(ids), output_len, self.num_seqs, self.beam, prompt_ids=ids))
        return found


SCENARIOS = [
    *(Scenario(f"blocks of {size}", partial(Paged, block_size=size)) for size in (1, 16, 32, 256)),
    Scenario("contiguous max", ContiguousMax),
    Scenario("contiguous pow2", ContiguousPow2),
    Scenario("contiguous oracle", ContiguousOracle),
    Scenario("chunked prefill", Paged, chunked=True),
    Scenario("chunked prefill, contiguous", ContiguousOracle, chunked=True),
    Scenario("prefix hit", PrefixCaching, common=100, happened="hits"),
    Scenario("swap and back", Paged, TIGHT, Swap, happened="swaps"),
    Scenario("recompute", Paged, TIGHT, Recompute, happened="recomputes"),
    Scenario("fork and copy-on-write", Paged, num_seqs=4, num_requests=16, happened="copies"),
    Scenario("fork into extents", ContiguousPow2, num_seqs=4, num_requests=16, happened="copies"),
    Scenario("beams of 4", Paged, num_seqs=4, beam=True, num_requests=16, happened="copies"),
    Scenario("beams of 4, swapped", Paged, TIGHT, Swap, num_seqs=4, beam=True, num_requests=16, happened="swaps"),
]
