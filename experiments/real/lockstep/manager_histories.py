"""Generated histories of vLLM's KV cache manager, checked against the clauses of our contract that
apply to it.
"""

from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import chain
from random import Random
from typing import Any

from testbed.checks.contract.clauses import ClauseBroken, require
from testbed.checks.contract.search import shortest
from testbed.experiments.real.lockstep import vllm_installation as vllm

BLOCK = 4
MAX_LEN = 120
STORIES = 3


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the manager.

    verb: allocate a new request with a prompt of num_tokens tokens, the first `shared` of a story;
    grow the `pick`th request by num_tokens; free it; or preempt it, so that it asks for all its
    tokens again.
    """

    verb: str
    pick: int = 0
    num_tokens: int = 1
    shared: int = 0


class History:
    """A manager with the requests that hold blocks, and the tokens that each block must store."""

    def __init__(self, num_blocks: int, windows: tuple[int | None, ...]) -> None:
        self.windows = windows
        self.manager = make_manager(num_blocks, windows)
        self.pool = self.manager.block_pool
        self.hasher = vllm.block_hasher(BLOCK)
        self.requests: list[Any] = []
        self.contents: dict[tuple[int, int], tuple[int, ...]] = {}
        self.serial = 0

    def run(self, calls: list[Call]) -> list[tuple[Any, ...]]:
        """Carry out the calls and check after each; returns the answers. Raises ClauseBroken."""
        answers = []
        for call in calls:
            answers.append(self._carry_out(call))
            self._check()
        for request in self.requests:
            self.manager.free(request)
        self.requests.clear()
        num_free = self.pool.get_num_free_blocks()
        require(
            4, num_free == self.pool.num_gpu_blocks - 1, "blocks are missing after all is freed"
        )
        return answers

    def _carry_out(self, call: Call) -> tuple[Any, ...]:
        if call.verb == "allocate":
            self.serial += 1
            shared, story = min(call.shared, call.num_tokens), 10_000 * (1 + call.pick % STORIES)
            own = [10**6 * self.serial + k for k in range(call.num_tokens - shared)]
            tokens = [*range(story, story + shared), *own]
            return self._admit(
                vllm.make_request(self.serial, tokens, MAX_LEN, None, self.hasher), call.num_tokens
            )
        if not self.requests:
            return ()
        request = self.requests[call.pick % len(self.requests)]
        if call.verb == "grow":
            return self._grow(request, call.num_tokens)
        self.manager.free(request)
        self.requests.remove(request)
        if call.verb == "preempt":
            request.num_computed_tokens = 0
            return self._admit(request, call.num_tokens)
        return ()

    def _admit(self, request: Any, chunk: int) -> tuple[Any, ...]:
        cached, num_found = self.manager.get_computed_blocks(request)[:2]
        sound = 0 <= num_found < request.num_tokens and num_found % BLOCK == 0
        require(8, sound, f"{num_found} of {request.num_tokens} tokens are said to be cached")
        for group, blocks in enumerate(cached.get_block_ids()):
            for i, block in enumerate(blocks):
                tokens = tuple(request.all_token_ids[: (i + 1) * BLOCK])
                stores = (
                    self.pool.blocks[block].is_null or self.contents.get((group, block)) == tokens
                )
                require(
                    8, stores, f"block {block} is found and does not store the tokens asked for"
                )
        new = min(max(chunk, 1), request.num_tokens - num_found)
        return self._allocate(request, new, num_found, cached)

    def _grow(self, request: Any, number: int) -> tuple[Any, ...]:
        left = request.num_tokens - request.num_computed_tokens
        if not left and request.num_tokens < MAX_LEN:
            self.serial += 1
            request.append_output_token_ids(10**9 + self.serial)
            left = 1
        return self._allocate(request, min(number, left), 0, None) if left else ()

    def _allocate(self, request: Any, new: int, num_found: int, cached: Any) -> tuple[Any, ...]:
        before = self._seen()
        granted = self.manager.allocate_slots(request, new, num_found, cached)
        if granted is None:
            require(
                1,
                self.windows != (None,) or self._seen() == before,
                "a refusal has changed something",
            )
            again = self.manager.allocate_slots(request, new, num_found, cached)
            require(2, again is None, "a refusal was not given again")
            return (None,)
        if request not in self.requests:
            self.requests.append(request)
            request.num_computed_tokens = num_found
        self._write(request, request.num_computed_tokens, request.num_computed_tokens + new)
        request.num_computed_tokens += new
        return (num_found, tuple(map(len, self._tables(request))))

    def _write(self, request: Any, start: int, stop: int) -> None:
        tokens = request.all_token_ids
        for group, table in enumerate(self._tables(request)):
            require(4, len(table) * BLOCK >= stop, f"{len(table)} blocks for {stop} tokens")
            for i in range(start // BLOCK, -(-stop // BLOCK)):
                block = self.pool.blocks[table[i]]
                require(5, not block.is_null, f"token {i * BLOCK} is written to the null block")
                require(
                    5,
                    block.ref_cnt == 1,
                    f"block {table[i]} is written while {block.ref_cnt} hold it",
                )
                self.contents[group, table[i]] = tuple(tokens[: min(stop, (i + 1) * BLOCK)])

    def _check(self) -> None:
        null = self.pool.null_block.block_id
        tables = [table for request in self.requests for table in self._tables(request)]
        held = Counter(chain.from_iterable(tables))
        del held[null]
        free = [block.block_id for block in self.pool.free_block_queue.get_all_free_blocks()]
        every = sorted([*free, *held, null]) == list(range(self.pool.num_gpu_blocks))
        require(
            4,
            every and len(free) == self.pool.get_num_free_blocks(),
            "blocks were lost, or are free and held",
        )
        for block, count in held.items():
            counted = self.pool.blocks[block].ref_cnt
            require(4, counted == count, f"block {block} is counted {counted} times")

    def _tables(self, request: Any) -> Any:
        return self.manager.get_block_ids(request.request_id)

    def _seen(self) -> tuple[Any, ...]:
        free = [block.block_id for block in self.pool.free_block_queue.get_all_free_blocks()]
        return free, [(block.block_hash, block.ref_cnt) for block in self.pool.blocks]


def make_manager(num_blocks: int, windows: tuple[int | None, ...]) -> Any:
    """The installation's KVCacheManager, with the arguments that its release takes."""
    from inspect import signature

    config = vllm.kv_cache_config(num_blocks, BLOCK, windows)
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    options = {"hash_block_size": BLOCK, "scheduler_block_size": BLOCK, "enable_caching": True}
    parameters = signature(KVCacheManager).parameters
    return KVCacheManager(
        config, MAX_LEN, **{name: value for name, value in options.items() if name in parameters}
    )


def draw(random: Random) -> tuple[int, tuple[int | None, ...], list[Call]]:
    """A pool, its groups, and up to 40 calls."""
    windows = random.choice([(None,), (None,), (None, 8), (16,), (None, 8, 16)])
    calls = []
    for _ in range(random.randint(1, 40)):
        verb = random.choice(["allocate", "allocate", "grow", "grow", "grow", "free", "preempt"])
        number = random.choice([1, random.randint(1, 12), random.randint(1, MAX_LEN // 2)])
        calls.append(
            Call(
                verb,
                random.randrange(6),
                number,
                random.choice([0, number, random.randint(0, number)]),
            )
        )
    return random.choice([8, 20, 60]) * len(windows), windows, calls


def broken_by(
    num_blocks: int, windows: tuple[int | None, ...], calls: list[Call]
) -> ClauseBroken | None:
    """The clause that the calls break, or None; they are carried out twice, for clause 9."""
    try:
        if History(num_blocks, windows).run(calls) != History(num_blocks, windows).run(calls):
            return ClauseBroken(9, "the same calls gave different answers")
    except ClauseBroken as broken:
        return broken
    except (AssertionError, ValueError, KeyError, IndexError) as error:
        return ClauseBroken(10, f"{type(error).__name__}: {error}")
    return None


def check_histories(count: int, seed: int) -> list[str]:
    """Check `count` random histories; returns lines for a report.

    For the first history that breaks a clause they have the shortest calls that do.
    """
    release = vllm.installed_release()
    for number in range(count):
        num_blocks, windows, calls = draw(Random(f"{seed}/{number}"))
        broken = broken_by(num_blocks, windows, calls)
        if broken is not None:
            calls = shortest(calls, partial(_breaks, broken.clause, num_blocks, windows))
            head = f"history {number + 1:,}: {broken_by(num_blocks, windows, calls)}"
            return [
                f"{head}; {num_blocks} blocks, groups {windows}",
                *(f"    {call}" for call in calls),
            ]
    return [f"vllm {release}: {count:,} histories of its KV cache manager break no clause"]


def _breaks(
    clause: int, num_blocks: int, windows: tuple[int | None, ...], calls: list[Call]
) -> bool:
    broken = broken_by(num_blocks, windows, calls)
    return broken is not None and broken.clause == clause
