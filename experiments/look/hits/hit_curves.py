"""Hit rates of a configured trace by cache size and eviction order."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import Rows, Workload
from testbed.core.slots import HOST
from testbed.core.specs import GIB
from testbed.engine.arrivals import Sessions
from testbed.experiments.runs.choice_names import KEYS
from testbed.experiments.runs.compose import configured
from testbed.memory.pools import PoolSpec
from testbed.memory.prefix_cache.curves.accesses import num_different
from testbed.memory.prefix_cache.curves.bound import most_hits
from testbed.memory.prefix_cache.curves.policy_replay import replayed_hits
from testbed.memory.prefix_cache.curves.stack_distances import lru_hits
from testbed.memory.prefix_cache.replay import Prompt, prompts_of
from testbed.run.config import RunConfig
from testbed.run.description import configured as configured_part
from testbed.run.machine import block_size_of, make_pool
from testbed.run.override_words import key_of
from testbed.run.workload import make_workload

LRU, BELADY = "lru", "belady"
IN_ONE_PASS = {LRU: lru_hits, BELADY: most_hits}  # of all sizes together
USUAL_BLOCK = 16  # tokens, if the trace names single tokens
NUM_SIZES = 12
CACHE = "prefix_caching"  # of the blocks that are replayed
WITHOUT_CACHE = "policy=paged"  # of a command with --no-enable-prefix-caching
OnDone = Callable[[str, int], None]


@dataclass(frozen=True)
class HitCurves:
    """Hits of prefix caches of several sizes on a trace.

    sizes: blocks, ascending. hits: blocks found at each size, by order; BELADY is the bound of all
    orders. prompt_tokens: of all prompts. largest_prompt: blocks. stored_blocks: the different full
    blocks of all prompts. trace: as it is configured. pools: blocks of the configured server's
    memory by name, each with the pools above it.
    """

    num_prompts: int
    prompt_tokens: int
    largest_prompt: int
    stored_blocks: int
    model: str
    trace: str
    block_size: int
    block_bytes: int
    sizes: Sequence[int]
    hits: Mapping[str, Sequence[int]]
    pools: Mapping[str, int]

    def share(self, order: str) -> list[float]:
        """The share of the prompts' tokens that the order finds, by size."""
        return [hits * self.block_size / self.prompt_tokens for hits in self.hits[order]]

    def gib(self, num_blocks: int) -> float:
        """The memory of num_blocks blocks of the model, over all GPUs together."""
        return num_blocks * self.block_bytes / GIB

    def pool_of(self, num_blocks: int) -> str:
        """The configured pools that have this size together, or an empty text."""
        return ", ".join(name for name, size in self.pools.items() if size == num_blocks)


def hit_curves(
    words: Sequence[str],
    sizes: Sequence[int] = (),
    orders: Sequence[str] = (LRU, BELADY),
    on_done: OnDone = lambda order, size: None,
) -> HitCurves:
    """The curves of the trace in the overrides `words`.

    sizes: blocks; none: NUM_SIZES of them up to one that evicts nothing, and the server's pools.
    Orders other than LRU and BELADY are replayed at each size, and on_done(order, size) is called
    after every replay.
    """
    config = _checked(words)
    rows = trace_rows(config)
    size = _block_size(words, config, rows)
    prompts = _arriving(rows, size)
    stored = num_different(prompts)
    largest = max(prompt.num_blocks for prompt in prompts)
    spec = make_pool(config)
    pools = _pools(spec, size)
    shown = sorted({*sizes} or {*_usual_sizes(largest, stored), *pools.values()})

    def hits(order: str) -> list[int]:
        if order in IN_ONE_PASS:
            return IN_ONE_PASS[order](prompts, shown)
        return _replays(words, order, rows, size, shown, on_done)

    return HitCurves(
        num_prompts=len(prompts),
        prompt_tokens=int(rows.prompt_len.sum()),
        largest_prompt=largest,
        stored_blocks=stored,
        model=config.model.name,
        trace=configured_part(config.trace),
        block_size=size,
        block_bytes=size * spec.layer_bytes * spec.num_layers,
        sizes=shown,
        hits={order: hits(order) for order in orders},
        pools=pools,
    )


def _arriving(rows: Rows, block_size: int) -> list[Prompt]:
    """The prompts of the rows. Raises InputError if there is none."""
    prompts = list(prompts_of(rows, block_size))
    if not prompts:
        raise InputError(
            key="arrivals", problem="no request arrives", remedy="raise arrivals.duration_s or rate"
        )
    return prompts


def _checked(words: Sequence[str]) -> RunConfig:
    """The configuration of these overrides. Raises InputError if it is not that of one cache, or
    names an order, or caches nothing.
    """
    config = configured(words)
    _check_one_cache(config)
    _check_no_order(words)
    _check_cached(words)
    return config


def _check_one_cache(config: RunConfig) -> None:
    if config.replicas is not None:
        raise InputError(
            key="replicas",
            value=config.replicas,
            problem="nothing reads it, for the curves are those of one cache",
            remedy="leave it out",
        )


def _check_no_order(words: Sequence[str]) -> None:
    """Raise InputError for an eviction order among the overrides, for the curves have their own."""
    for word in words:
        key, _, name = word.partition("=")
        if key == KEYS["eviction"]:
            raise InputError(
                key=word,
                problem="nothing reads it",
                remedy=f"give the orders as --orders {LRU},{name},{BELADY}",
            )


def _check_cached(words: Sequence[str]) -> None:
    """Raise InputError for the choice of a scheduler, or of a policy other than the prefix cache of
    blocks that is replayed.
    """
    for word in words:
        key, _, name = word.partition("=")
        if key == "scheduler" or (key == "policy" and name != CACHE):
            off = word == WITHOUT_CACHE
            option = "--no-enable-prefix-caching" if off else "the option that asks for it"
            raise InputError(
                key=word,
                problem=(
                    "nothing reads it, for prompts come one at a time to a prefix cache of blocks"
                ),
                remedy=(
                    f"leave it out, or {option} of the server's command; "
                    "+tier@server.tiers.dram=dram is a tier below, testbed run counts all"
                ),
            )


def _block_size(words: Sequence[str], config: RunConfig, rows: Rows) -> int:
    """policy.block_size if the words give it; else the tokens of an id of the trace."""
    if any(key_of(word) == "policy.block_size" for word in words):
        return block_size_of(config.policy) or USUAL_BLOCK
    return rows.tokens_per_id if rows.tokens_per_id > 1 else USUAL_BLOCK


def trace_rows(config: RunConfig) -> Rows:
    """The whole trace in its own order, in that of arrivals=sessions, or if the trace has no end
    the requests that the arrival process takes of it.
    """
    trace = config.trace.make("trace")
    if isinstance(trace, Workload):
        return trace.rows
    if isinstance(config.arrivals.make("arrivals"), Sessions):
        return make_workload(config).rows
    try:
        rows: Rows = trace.rows(None, config.seed, config.workload.max_len)
    except InputError:
        return make_workload(config).rows
    return rows


def _usual_sizes(largest: int, stored: int) -> list[int]:
    """Sizes from the largest prompt to all different blocks with one prompt more, evenly on a
    logarithmic axis.
    """
    return [round(size) for size in np.geomspace(largest, largest + stored, NUM_SIZES)]


def _pools(spec: PoolSpec, block_size: int) -> dict[str, int]:
    """Blocks of the device's pool, and of it with each tier below it that a cache can use."""
    slots = {"GPU": spec.num_slots}
    slots |= {f"+ {tier.name}": tier.num_slots for tier in spec.tiers if tier.name != HOST}
    totals = accumulate(num_slots // block_size for num_slots in slots.values())
    return {name: size for name, size in zip(slots, totals, strict=True) if size}


def _replays(
    words: Sequence[str],
    order: str,
    rows: Rows,
    block_size: int,
    sizes: Sequence[int],
    on_done: OnDone,
) -> list[int]:
    """Blocks that another order finds at each size, each by a replay through the policy."""
    chosen = configured((*words, "policy=prefix_caching", f"eviction@policy.eviction={order}"))
    part = chosen.policy.parameters["eviction"]
    hits = []
    for size in sizes:
        hits.append(sum(replayed_hits(rows, block_size, size, part.make("policy.eviction"))))
        on_done(order, size)
    return hits
