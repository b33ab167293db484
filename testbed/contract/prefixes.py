"""Prompts that share their beginnings, and clause 8: what a caching policy must find."""

from itertools import count

from testbed.contract.histories import Admit

Tables = dict[int, list[int]]
PREFIX = 2  # the story of a registered prefix; 0 and 1 are those of requests


class Stories:
    """The tokens of every prompt, and which blocks of stories must be findable by now.

    The tokens of a story are the same in every prompt that shares them; all others occur once. `tables` has the
    slots of every sequence on the device. A block of a story is certainly findable while one of them has the block
    that was published when no other had an equal one.
    """

    def __init__(self, block_size: int | None) -> None:
        self._block_size = block_size  # None: no block is certain to be found
        self._announced: dict[int, tuple[int, int]] = {}
        self._declared: dict[int, int] = {}
        self._findable: dict[tuple[int, int], int] = {}
        self._fresh = count()

    def tell(self, seq_ids: list[int], call: Admit, prompt_len: int, prefix: int) -> tuple[int, ...]:
        """The prompt of these new sequences, which begins with a registered prefix of `prefix` tokens, if any."""
        story, shared = (PREFIX, prefix) if prefix else (call.story, min(call.shared, prompt_len))
        for seq_id in seq_ids:
            self._announced[seq_id] = story, 0 if prefix else shared
        return (*story_tokens(story, shared), *(self.fresh() for _ in range(prompt_len - shared)))

    def fresh(self) -> int:
        return next(self._fresh)

    def entered(self, seq_id: int, num_cached: int) -> None:
        self._declared[seq_id] = num_cached

    def removed(self, seq_id: int) -> None:
        self._declared.pop(seq_id, None)

    def publish(self, seq_id: int, num_tokens: int, tables: Tables) -> None:
        """The first num_tokens tokens are declared: its new blocks become findable unless equal ones may be."""
        size = self._block_size
        before = self._declared[seq_id]
        self._declared[seq_id] = max(before, num_tokens)
        if size is None:
            return
        story, shared = self._announced[seq_id]
        for i in range(before // size, min(shared, num_tokens) // size):
            slot = tables[seq_id][i * size]
            if all(other[i * size] == slot for other in self._holders(story, i, size, tables)):
                self._findable[story, i] = slot

    def certain_hit(self, seq_id: int, prompt_len: int, tables: Tables) -> int:
        """Tokens of a prompt that must be found now, its last one aside."""
        size = self._block_size
        if size is None:
            return 0
        story, shared = self._announced[seq_id]
        found = 0
        while found < min(shared, prompt_len - 1) // size:
            slot = self._findable.get((story, found))
            if slot is None or all(t[found * size] != slot for t in self._holders(story, found, size, tables)):
                break
            found += 1
        return found * size

    def _holders(self, story: int, i: int, size: int, tables: Tables) -> list[list[int]]:
        """The tables of those that have declared the i-th block of a story."""
        return [
            table
            for seq_id, table in tables.items()
            if self._announced[seq_id][0] == story
            and min(self._announced[seq_id][1], self._declared[seq_id]) >= (i + 1) * size
        ]


def story_tokens(story: int, num_tokens: int) -> list[int]:
    return [-1 - position * (PREFIX + 1) - story for position in range(num_tokens)]
