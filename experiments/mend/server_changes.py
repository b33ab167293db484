"""The changes of a vLLM server that may end its preemptions, each as overrides beside its command.

They set the limit of sequences, the memory of the pool, the prompt tokens of an iteration, the
bytes of keys and values, and the way of preemption.
"""

from collections.abc import Iterator
from typing import NamedTuple

from testbed.vllm.memory import seen_gib, terms
from testbed.vllm.option_table import may_have
from testbed.vllm.pool_sizing import BLOCKS, BYTES
from testbed.vllm.releases import Release
from testbed.vllm.server import Server
from testbed.vllm.start_refusals import graphs_may_not_fit

SHARES_OF_HELD = (1.0, 0.85, 0.7, 0.5)  # of the sequences that the pool holds on average
SHARES_OF_GPU = (0.85, 0.9, 0.95, 0.97)
LARGER_POOLS = (1.1, 1.25, 1.5)
BUDGETS = (0.25, 0.5, 2.0)
WATERMARK = 0.05
MOST_SEQUENCES, SEQUENCES_KEY = "--max-num-seqs", "scheduler.max_num_seqs"
OWN_WATERMARK = "--watermark"
SWAP_GIB = 20
NO_OPTION = "no option of vLLM"
ROUNDED = "answers change with rounded K and V; not modelled"
SAME_TOKENS = f"{BLOCKS} keeps the blocks, so no more tokens"
MAY_NOT_START = "may not start: CUDA graphs may need more than it leaves"


class Change(NamedTuple):
    """name: as an engineer writes it. words: overrides that make it. note: what to know of it.
    is_proposed: an option of vLLM's makes exactly this change, the server starts with it for all
    that is known, and its answers stay the same.
    """

    name: str
    words: tuple[str, ...] = ()
    note: str = ""
    is_proposed: bool = True


NONE = Change("none")


def changes_of(server: Server, num_held: float, own_blocks: int = 0) -> list[Change]:
    """Every change that may help this server. num_held: sequences of the load's mean size that the
    pool holds. own_blocks: of the pool that vLLM would compute if the command gave none.
    """
    return [
        *_fewer_sequences(server, num_held),
        *_more_memory(server),
        *_own_pool(server, own_blocks),
        *_other_budgets(server),
        *_smaller_cache(server),
        *_other_recoveries(server.release),
    ]


def _fewer_sequences(server: Server, num_held: float) -> Iterator[Change]:
    """As many sequences as the pool holds, and fewer, for they grow."""
    counts = dict.fromkeys(max(1, round(share * num_held)) for share in SHARES_OF_HELD)
    for count in counts:
        if count < server.limits.max_num_seqs:
            yield Change(f"{MOST_SEQUENCES} {count}", (f"{SEQUENCES_KEY}={count}",))


def more_sequences(server: Server) -> int:
    """Twice the limit of sequences, as far as vLLM takes it, which a batch's tokens bound."""
    limits = server.limits
    return max(limits.max_num_seqs, min(2 * limits.max_num_seqs, limits.max_num_batched_tokens))


def with_more_sequences(
    change: Change, server: Server, own_blocks: int, blocks_with_more: int
) -> Change:
    """The change beside more sequences. own_blocks: as for `changes_of`; blocks_with_more: the same
    with these sequences.
    """
    count = more_sequences(server)
    pools = _own_pool(server, own_blocks), _own_pool(server, blocks_with_more)
    first = dict(zip(*pools, strict=False)).get(change, change)
    option = f"{MOST_SEQUENCES} {count}"
    name = option if change == NONE else f"{first.name} and {option}"
    return first._replace(name=name, words=(*first.words, f"{SEQUENCES_KEY}={count}"))


def _more_memory(server: Server) -> Iterator[Change]:
    """Larger shares of the GPU; if the command gives the pool, a larger pool."""
    if BLOCKS in server.values or BYTES in server.values:
        pools = dict.fromkeys(int(factor * server.pool.num_blocks) for factor in LARGER_POOLS)
        for blocks in (blocks for blocks in pools if blocks > server.pool.num_blocks):
            yield Change(f"{BLOCKS} {blocks}", (f"server.num_blocks={blocks}",))
        return
    given = server.values.get("--gpu-memory-utilization")
    utilization = server.release.utilization if given is None else float(given)
    for share in SHARES_OF_GPU:
        if share > utilization:
            words = (f"server.memory_utilization={share:g}",)
            may_fail = _may_not_start(server, share)
            note = MAY_NOT_START if may_fail else "what else is on the GPU has less room"
            name = f"--gpu-memory-utilization {share:g}"
            yield Change(name, words, note, is_proposed=not may_fail)


def _may_not_start(server: Server, share: float) -> bool:
    """True if CUDA graphs that are captured after the pool may not fit beside this share."""
    memory = server.pool.memory
    is_after = memory is None or not memory.cuda_graphs
    return is_after and graphs_may_not_fit((1 - share) * seen_gib(server.gpu, terms()).gib)


def _own_pool(server: Server, own_blocks: int) -> Iterator[Change]:
    """The pool that vLLM computes, in place of a smaller one that the command gives."""
    if BLOCKS in server.values and own_blocks > server.pool.num_blocks:
        name = f"without {BLOCKS} ({own_blocks:,} blocks)"
        yield Change(name, (f"server.num_blocks={own_blocks}",))


def _other_budgets(server: Server) -> Iterator[Change]:
    for factor in BUDGETS:
        budget = int(factor * server.limits.max_num_batched_tokens)
        words = (f"scheduler.max_num_batched_tokens={budget}",)
        if budget >= server.limits.max_num_seqs:
            yield Change(f"--max-num-batched-tokens {budget}", words)


def _smaller_cache(server: Server) -> Iterator[Change]:
    """Keys and values of one byte, which are rounded."""
    if server.model.kv_dtype_bytes != 1:
        note = f"{ROUNDED}; {SAME_TOKENS}" if BLOCKS in server.values else ROUNDED
        yield Change("--kv-cache-dtype fp8", ("model.kv_dtype_bytes=1",), note, is_proposed=False)


def _other_recoveries(release: Release) -> Iterator[Change]:
    """vLLM's own watermark, of releases that have it, is rounded otherwise and not modelled."""
    swap, none = ("preemption=swap", f"swap_space_gib={SWAP_GIB}"), f"{NO_OPTION} {release.number}"
    yield Change(f"swap to {SWAP_GIB} GiB of host memory", swap, none, is_proposed=False)
    has_own = may_have(release.number, OWN_WATERMARK)
    note = f"{release.number}'s own {OWN_WATERMARK} is not modelled" if has_own else none
    words = (f"policy.watermark={WATERMARK:g}",)
    yield Change(f"watermark {WATERMARK:g}", words, note, is_proposed=False)
