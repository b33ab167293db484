"""Prompts that share their beginnings, and clause 8: what a caching policy must find, and may not make up."""

from itertools import count

from testbed.contract.calls import Admit
from testbed.contract.clauses import require
from testbed.memory.policy import MemoryPolicy

Slots = dict[int, list[int]]


class Stories:
    """The tokens of every sequence, and which blocks of stories can be found by now.

    The tokens of a story are the same in every prompt that shares them; all others occur once. `stored` says in what
    follows where the tokens of every resident sequence lie. A block of a story is certainly findable while a resident
    sequence holds the block that was computed when nobody held an equal one.
    """

    def __init__(self, policy: MemoryPolicy) -> None:
        self._block_size: int | None = getattr(policy, "block_size", None) if policy.caches_prefixes else None
        self._prompts: dict[int, tuple[int, ...]] = {}
        self._told: dict[int, tuple[int, int]] = {}
        self._findable: dict[tuple[int, int], int] = {}
        self._fresh = count()

    def tell(self, seq_id: int, call: Admit) -> tuple[int, ...]:
        """The prompt of a new sequence."""
        shared = min(call.shared, call.prompt_len)
        story = [-1 - position * 2 - call.story for position in range(shared)]
        self._told[seq_id] = call.story, shared
        self._prompts[seq_id] = ids = (*story, *(next(self._fresh) for _ in range(call.prompt_len - shared)))
        return ids

    def fork(self, parent_id: int, child_id: int) -> tuple[int, ...]:
        """The child has the parent's prompt."""
        self._told[child_id] = self._told[parent_id]
        self._prompts[child_id] = prompt = self._prompts[parent_id]
        return prompt

    def token(self, seq_id: int, position: int) -> int:
        """The token that a sequence computes for this position."""
        prompt = self._prompts[seq_id]
        return prompt[position] if position < len(prompt) else next(self._fresh)

    def computed(self, seq_id: int, stored: Slots) -> None:
        """The sequence has computed all that it stores: its blocks become findable unless equal ones are."""
        if self._block_size is None:
            return
        story, shared = self._told[seq_id]
        full = min(shared, len(stored[seq_id])) // self._block_size
        for i in range(full):
            if not self._held(story, i, stored):
                self._findable[story, i] = stored[seq_id][i * self._block_size]

    def certain_hit(self, seq_id: int, stored: Slots) -> int:
        """Tokens of a prompt that must be found now, its last one aside."""
        if self._block_size is None:
            return 0
        story, shared = self._told[seq_id]
        last = min(shared, len(self._prompts[seq_id]) - 1) // self._block_size
        found = 0
        while found < last and self._held(story, found, stored):
            found += 1
        return found * self._block_size

    def check_hit(self, seq_id: int, num_cached: int, read: list[int | None], stored: Slots) -> None:
        """Clause 8, on a grant that says num_cached; `read` is what the table holds there."""
        prompt = self._prompts[seq_id]
        require(8, num_cached <= len(prompt), f"{num_cached} tokens are cached of a prompt of {len(prompt)}")
        same = read == list(prompt[:num_cached])
        require(8, same, f"{num_cached} tokens are said to be cached, but were never computed or are other tokens")
        certain = self.certain_hit(seq_id, stored)
        require(8, num_cached >= certain, f"{num_cached} tokens were found, but {certain} are held by others")

    def _held(self, story: int, i: int, stored: Slots) -> bool:
        """Whether a resident sequence of the story holds its findable i-th block."""
        start, size = self._findable.get((story, i)), self._block_size or 0
        return start is not None and any(
            self._told[seq_id][0] == story
            and min(self._told[seq_id][1], len(slots)) >= (i + 1) * size
            and slots[i * size] == start
            for seq_id, slots in stored.items()
        )
