"""Runs that cover every path of the engine: each has a policy, a scheduler, a pool and requests.

Each record has the engine's logits and the tokens before them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from types import MappingProxyType
from typing import Any

import numpy as np
from torch import Tensor

from testbed.core.errors import PlugInError
from testbed.core.request import Request
from testbed.engine.totals import Totals
from testbed.engine.wall_clock import StepClock
from testbed.kernels.engine.architecture import Architecture
from testbed.kernels.engine.device_memory import free
from testbed.kernels.engine.models import Model
from testbed.kernels.engine.parallel.leader import ALONE, Alone
from testbed.kernels.engine.runner import Launched, Runner
from testbed.kernels.engine.sampler import Wanted
from testbed.kernels.engine.served_run import Options, assemble
from testbed.kernels.engine.token_buffers import Drawn
from testbed.kernels.engine.weights import Weights
from testbed.memory.capabilities import capabilities_of
from testbed.memory.contiguous.reservations import ContiguousMax, ContiguousOracle, ContiguousPow2
from testbed.memory.groups.grouped import Grouped
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import MemoryPolicy, PoolSpec, Tier, host
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.memory.tiers.tiered_caching import TieredCaching
from testbed.run.oracles import with_lengths
from testbed.sched.beam_search import Replacement
from testbed.sched.chunked import ChunkedPrefill
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import PreemptionRule, Recompute, Swap
from testbed.sched.scheduler import Scheduler
from testbed.sched.vllm_v1 import AsyncVllmV1, VllmV1
from testbed.speculation.draft_model import DraftModel
from testbed.speculation.speculation import Speculation

MAX_LEN = 512  # of prompt and output together
LARGE, TIGHT = (
    64 * MAX_LEN,
    512,
)  # slots of a pool that fits all requests, and of one that causes preemptions


PROMPT_GRAPHS = 256  # tokens; some iterations with prompts have more


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run; `happened` is an event that it must cause, one of the recorder's totals or the
    policy's counters.

    The first `distinct` prompts are sent again and again. ahead: iterations are planned, and but
    for the debug mode launched, while another runs, prompts by graphs. speculation: the drafter, in
    place of that; a model that drafts is the one that serves. below: slots of the swap space and of
    a tier. share_from: see Graphs.
    """

    name: str
    policy: Callable[[PoolSpec], MemoryPolicy]
    num_slots: int = LARGE
    rule: Callable[[], PreemptionRule] = Recompute
    chunked: bool = False
    num_seqs: int = 1
    beam: bool = False
    num_requests: int = 64
    common: int = 0
    distinct: int = 1000
    happened: str = ""
    ahead: bool = False
    max_num_seqs: int = 64
    below: int = LARGE
    speculation: Speculation | None = None
    share_from: float = inf

    def pool(self) -> PoolSpec:
        """The device's pool, the swap space and the tier."""
        return PoolSpec(self.num_slots, MAX_LEN, (*host(self.below), Tier("dram", self.below)))

    def scheduler(self, policy: MemoryPolicy) -> Scheduler:
        """The scheduler with this policy."""
        limits: dict[str, Any] = {
            "max_num_batched_tokens": 96,
            "max_num_seqs": self.max_num_seqs,
        }
        v1 = limits | {"long_prefill_token_threshold": 0, "scheduler_reserve_full_isl": True}
        if self.speculation is not None:
            drafting = {"drafter": self.speculation, "max_len": MAX_LEN}
            return VllmV1(policy, self.rule(), **(v1 | drafting))
        if self.ahead:
            return AsyncVllmV1(policy, self.rule(), **v1, ignore_eos=True)
        if self.chunked:
            return ChunkedPrefill(policy, self.rule(), **limits)
        return MixedPrefill(policy, self.rule(), **limits | {"max_num_batched_tokens": 2048})

    def requests(self, vocab_size: int, seed: int = 0) -> list[Request]:
        """Ragged prompts of 1 to 200 tokens, the first `common` the same in all; outputs of 4 to
        24.
        """
        rng = np.random.default_rng([seed, 5])
        shared = rng.integers(vocab_size, size=self.common).tolist()
        requests, prompts = list[Request](), list[tuple[int, ...]]()
        for i in range(self.num_requests):
            own = rng.integers(
                vocab_size, size=max(1, int(np.exp(rng.uniform(0, np.log(200)))))
            ).tolist()
            prompts.append(tuple(shared + own))
            ids, output_len = prompts[i % self.distinct], int(rng.integers(4, 25))
            requests.append(
                Request(
                    i,
                    arrival_ps=i * 10**11,
                    prompt_len=len(ids),
                    output_len=output_len,
                    num_seqs=self.num_seqs,
                    beam=self.beam,
                    prompt_ids=ids,
                )
            )
        return requests


SCENARIOS = [
    *(Scenario(f"blocks of {size}", partial(Paged, block_size=size)) for size in (1, 16, 32, 256)),
    Scenario("contiguous max", ContiguousMax),
    Scenario("contiguous pow2", ContiguousPow2),
    Scenario("contiguous oracle", ContiguousOracle),
    Scenario("chunked prefill", Paged, chunked=True),
    Scenario("chunked prefill, contiguous", ContiguousOracle, chunked=True),
    Scenario("prefix hit", PrefixCaching, common=100, happened="hit_tokens"),
    Scenario("loads from a tier", TieredCaching, TIGHT, distinct=16, happened="loaded_blocks"),
    Scenario("swap and back", Paged, TIGHT, Swap, happened="swaps"),
    Scenario("recompute", Paged, TIGHT, Recompute, happened="recomputes"),
    Scenario("launched ahead, recompute", Paged, TIGHT, happened="recomputes", ahead=True),
    Scenario(
        "launched ahead, prefix hit", PrefixCaching, common=100, happened="hit_tokens", ahead=True
    ),
    Scenario(
        "prefix read once",
        PrefixCaching,
        common=100,
        happened="hit_tokens",
        ahead=True,
        share_from=1,
    ),
    Scenario("fork and copy-on-write", Paged, num_seqs=4, num_requests=16, happened="copies"),
    Scenario("fork into extents", ContiguousPow2, num_seqs=4, num_requests=16, happened="copies"),
    Scenario("beams of 4", Paged, num_seqs=4, beam=True, num_requests=16, happened="copies"),
    Scenario("pages of groups", partial(Grouped, block_size=16)),
    Scenario(
        "pages of groups, recompute",
        partial(Grouped, block_size=8, page_rule="large_pages"),
        320,  # models whose windows give slots back are preempted, too
        happened="recomputes",
    ),
    Scenario(
        "beams of 4, swapped",
        Paged,
        TIGHT,
        Swap,
        num_seqs=4,
        beam=True,
        num_requests=16,
        happened="swaps",
    ),
]


Row = tuple[tuple[int, ...], Tensor]  # tokens so far, and logits of the next


def record(
    scenario: Scenario,
    arch: Architecture,
    weights: Weights,
    graphs: int = 0,
    lead: Alone = ALONE,
) -> list[Row]:
    """Serve the scenario's requests, in debug mode or, with graphs or by groups, without it;
    returns every choice. arch, weights: of rank 0, if `lead` leads workers.
    """
    free()  # the engine of a scenario before
    short = replace(arch, spec=replace(arch.spec, max_len=min(arch.spec.max_len, MAX_LEN)))
    pool = replace(scenario.pool(), groups=arch.spec.groups, num_layers=arch.spec.num_layers)
    lengths = dict[int, int]()
    policy = with_lengths(scenario.policy, MappingProxyType(lengths))(pool)
    memory = capabilities_of(policy)
    pool = memory.pool_in_slots(pool)
    debug = not graphs and memory.layered is None
    clock, prompt_graphs = StepClock(0.1), PROMPT_GRAPHS if graphs else 0
    options = Options(
        debug,
        clock=clock,
        graphs=graphs,
        lengths=lengths,
        prompt_graphs=prompt_graphs,
        share_from=scenario.share_from,
        drafter=Model(short, weights) if isinstance(scenario.speculation, DraftModel) else None,
    )
    engine = assemble(scenario.scheduler(policy), pool, short, weights, options, lead)
    rows = watched(engine.runner)
    totals = engine.serve(scenario.requests(arch.spec.vocab_size)).recorder.totals
    _check_happened(scenario, totals, policy.counters())
    return rows


def _check_happened(scenario: Scenario, totals: Totals, counters: Mapping[str, int]) -> None:
    """Raise if the scenario did not cause its event, or not all requests have ended."""
    event = scenario.happened
    number = getattr(totals, event, counters.get(event)) if event else 1
    if totals.finished != scenario.num_requests or not number:
        raise PlugInError(f"{scenario.name}: {totals.finished} requests ended, {event}: {number}")


def watched(runner: Runner) -> list[Row]:
    """A list to which every row is added when its token is read: the logits were copied when it was
    drawn, since a graph that is launched meanwhile overwrites them.
    """
    rows, copies = list[Row](), dict[int, Tensor]()
    draw, sample = runner.sampler.draw, runner.sample

    def watch_draw(logits: Tensor, wanted: Wanted) -> Drawn:
        copies[id(wanted)] = logits.clone()
        return draw(logits, wanted)

    def watch_sample(launched: Launched) -> dict[int, tuple[Replacement, ...]]:
        logits = copies.pop(id(launched.wanted), None)
        for row, (group, index, num_drafts) in enumerate(launched.wanted.owners):
            seq_id = group.sequences[index].seq_id
            drafts = launched.drafts.get(seq_id, ())[:num_drafts]
            assert logits is not None, "an owner has a row"
            rows.append(((*runner.token_buffers.tokens[seq_id], *drafts), logits[row]))
        return sample(launched)

    watching: Any = runner
    watching.sampler.draw, watching.sample = watch_draw, watch_sample
    return rows
