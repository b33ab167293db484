"""A prefix cache of two tiers: blocks that the device evicts are written to the host, and read back
on a hit.
"""

from collections import OrderedDict
from dataclasses import replace

from testbed.core.slots import DEVICE, HOST, Copy, Grant, Move, Ops
from testbed.memory.policy import PoolSpec, host
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.memory.prefix_cache.hash_chain import block_contents
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching
from testbed.memory.prefix_cache.prefix_index import PrefixIndex


class RecordingLru(Lru):
    """Least recently used; `evicted` lists (chain code, parent's code, content, block) since it was
    emptied.
    """

    def __init__(self):
        super().__init__()
        self.evicted = []

    def victims(self, count):
        for node in super().victims(count):
            self.evicted.append((node.code, node.parent.code, node.content, node.block))
            yield node


class TwoTiers(PrefixCaching):
    """The last cache_share of the host holds evicted blocks, least recently used out first; the
    rest is for swapping.

    Tokens that were read back stay on the host too, so that it need not be written again.
    """

    def __init__(
        self,
        pool: PoolSpec,
        block_size: int = 16,
        watermark: float = 0.01,
        cache_share: float = 0.5,
    ) -> None:
        num_slots = pool.slots_of(HOST)
        num_blocks = int(num_slots * cache_share) // block_size
        self.first_slot = num_slots - num_blocks * block_size
        self.order = RecordingLru()
        pool = replace(pool, tiers=host(self.first_slot))
        super().__init__(pool, block_size, watermark, self.order)
        self.host_free = list(range(num_blocks))[::-1]
        self.host_blocks = (
            OrderedDict()
        )  # chain code: (parent's code, content, host block); last used last
        self.chain = PrefixIndex(0).chain
        self.num_written = self.num_read = self.num_found_below = 0

    def admit(self, seqs, num_tokens, hit=None):
        """Slots for all that both tiers have of a prompt, also beyond its first chunk; for that
        chunk if they lack.
        """
        hit = self.lookup(seqs[0]) if hit is None else hit
        cached = hit.num_cached(num_tokens)
        wanted = cached + len(self.found(seqs[0], cached, num_tokens)) * self.block_size
        granted = max(num_tokens, wanted)
        answers = super().admit(seqs, granted, hit)
        if not isinstance(answers, list) and granted > num_tokens:
            granted = num_tokens
            answers = super().admit(seqs, granted, hit)
        if not isinstance(answers, list):
            return answers
        codes = self.found(seqs[0], answers[0].num_cached, num_tokens)
        codes = codes[: (granted - answers[0].num_cached) // self.block_size]
        for code in codes:
            self.host_blocks.move_to_end(code)
        table = self.table(seqs[0])[answers[0].num_cached // self.block_size :]
        copies = tuple(
            Copy(self.slot(self.host_blocks[code][-1]), extent.start, extent.length)
            for code, extent in zip(codes, table, strict=False)
        )
        self.num_read += len(copies)
        if not seqs[0].num_preemptions:
            self.num_found_below += len(copies)
        written = self.written(keep=codes)
        read = (Move(HOST, DEVICE, copies),) if copies else ()
        first = answers[0]._replace(
            num_cached=answers[0].num_cached + len(copies) * self.block_size
        )
        answers[0] = first._replace(ops=first.ops._replace(moves=first.ops.moves + written + read))
        return answers

    def extend(self, batch, num_tokens):
        return self.with_written(super().extend(batch, num_tokens))

    def move(self, seqs, tier):
        return self.with_written(super().move(seqs, tier))

    def guaranteed_steps(self, batch):
        """Steps that free blocks allow: an eviction is a transfer, so it ends a span."""
        free = self.usage().free // self.block_size
        return (
            min(super().guaranteed_steps(batch), free // len(batch) * self.block_size)
            if len(batch)
            else 0
        )

    def counters(self):
        counted = super().counters()
        return {
            **counted,
            "hit_blocks": counted["hit_blocks"] + self.num_found_below,
            "hit_tokens": counted["hit_tokens"] + self.num_found_below * self.block_size,
            "host_written_blocks": self.num_written,
            "host_read_blocks": self.num_read,
        }

    def check(self):
        super().check()
        held = [block for _, _, block in self.host_blocks.values()]
        assert sorted(held + self.host_free) == list(range(len(held) + len(self.host_free))), (
            "host blocks were lost"
        )
        assert not self.order.evicted, "an evicted block was forgotten"

    def slot(self, host_block):
        """First slot of a block of the cache on the host."""
        return self.first_slot + host_block * self.block_size

    def found(self, seq, num_cached, num_tokens):
        """Chain codes of the full blocks behind what the device has that lie on the host."""
        if seq.prompt_ids is None or num_cached % self.block_size:
            return []
        contents = block_contents(
            seq.prompt_ids, seq.tokens_per_id, seq.prompt_len, self.block_size
        )
        codes, at, found = self.chain(contents), num_cached // self.block_size, []
        readable = seq.prompt_len if num_tokens > seq.prompt_len else seq.prompt_len - 1
        for i in range(at, readable // self.block_size):
            parent, content, _ = self.host_blocks.get(codes[i], (None, None, None))
            if content != contents[i] or parent != (codes[i - 1] if i else 0):
                break
            found.append(codes[i])
        return found

    def written(self, keep=()):
        """The moves that bring what was just evicted to the host, as far as it is not there and
        finds slots.
        """
        copies, kept = [], set(keep)
        for code, parent, content, block in self.order.evicted:
            if code in self.host_blocks:
                self.host_blocks.move_to_end(code)
                continue
            if not self.host_free:
                oldest = next((other for other in self.host_blocks if other not in kept), None)
                if oldest is None:
                    continue
                self.host_free.append(self.host_blocks.pop(oldest)[-1])
            self.host_blocks[code] = parent, content, self.host_free.pop()
            kept.add(code)
            copies.append(
                Copy(
                    block * self.block_size, self.slot(self.host_blocks[code][-1]), self.block_size
                )
            )
        self.order.evicted.clear()
        self.num_written += len(copies)
        return (Move(DEVICE, HOST, tuple(copies)),) if copies else ()

    def with_written(self, answer):
        """The answer, whose evictions have to be written before anything else happens."""
        written = self.written()
        if not written or not isinstance(answer, Grant):
            return answer
        ops = answer.ops
        return answer._replace(ops=Ops(ops.copies, written + ops.moves, ops.extra))
