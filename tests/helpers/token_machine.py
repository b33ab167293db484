"""A device that carries out a scheduler's plans with a memory that stores tokens, while a simulation runs."""

from collections import Counter

from testbed.contract.clauses import slots_of
from testbed.contract.token_memory import TokenMemory
from testbed.core.sequence import SequenceStatus
from testbed.memory.policy import PoolSpec, host


def watchable(kind):
    """The class, of whose objects methods can be replaced, be it compiled or not."""
    return type(kind.__name__, (kind,), {})


class Machine:
    """Watches a scheduler: performs the ops of every plan in their order, then every read and write of its iterations.

    Scheduler and policy are of `watchable` classes. Whatever an iteration reads must be its sequence's own tokens in
    their positions, and whatever it writes must be a slot that nobody else holds. Prompt tokens are named by their
    content, generated ones occur once.
    """

    def __init__(self, scheduler, prefix=0):
        self.scheduler = scheduler
        self.policy = scheduler.policy
        self.state = scheduler.state
        self.memory = TokenMemory(PoolSpec(1 << 40, 1 << 40, host(1 << 40)))
        self.tokens = {}
        self.pinned = slots_of(list(self.policy.non_sequence_slots().pinned))
        self.memory.write(self.pinned[:prefix], [("prefix", i) for i in range(prefix)])
        self.num_read = 0
        self._commit, self._extend, self._fork = scheduler.commit, self.policy.extend, self.policy.fork
        self._commits = False
        scheduler.commit, self.policy.extend, self.policy.fork = self.commit, self.extend, self.fork

    def commit(self, plan, steps, results):
        """The first iteration of a plan, before the scheduler hears of it."""
        for ops in plan.ops:
            self.memory.perform(ops)
        work = [(chunk.seq, chunk.num_stored, chunk.new) for chunk in plan.chunks]
        if plan.decode_seqs:
            work += [(seq, seq.num_stored, 1) for seq in self.state.batch]
        for group in plan.swapped_in:
            work += [(seq, seq.num_stored, 1) for seq in group.sequences if seq.num_slots > seq.num_stored]
        self.compute(work)
        self._commits = True
        outcome = self._commit(plan, steps, results)
        self._commits = False
        return outcome

    def extend(self, batch, num_tokens):
        """While a plan is committed: the further iterations of a span, with the rooms that the caller gives then."""
        answer = self._extend(batch, num_tokens)
        if self._commits:
            batch.extend(num_tokens)
            self.compute([(seq, seq.num_stored + 1, num_tokens) for seq in batch])
            batch.extend(-num_tokens)
        return answer

    def fork(self, parent, child):
        """The child has the parent's tokens."""
        self.tokens[child.seq_id] = self.tokens[parent.seq_id][: parent.num_stored]
        return self._fork(parent, child)

    def compute(self, work):
        """All of them write their new tokens, and read the ones before: a layer's K and V are written first."""
        tables = {seq.seq_id: slots_of(self.policy.table(seq)) for seq in self.holding()}
        found = {seq.seq_id: seq.num_stored for seq in self.holding(SequenceStatus.PREFILLING)}
        holders = Counter(self.pinned)
        for seq_id, table in tables.items():
            holders.update(table[found.get(seq_id, 0) :])
        for seq, start, count in work:
            slots = tables[seq.seq_id][start : start + count]
            fits = len(slots) == count and start + count <= seq.num_slots
            assert fits, f"{seq} has no room for {count} tokens behind {start}"
            own = set(tables[seq.seq_id][found.get(seq.seq_id, 0) :])
            assert all(holders[slot] == (slot in own) for slot in slots), f"{seq} writes where another one reads"
            self.memory.write(slots, self.named(seq, start + count)[start : start + count])
        for seq, start, count in work:
            end = start + count
            read = [self.memory.device.get(slot) for slot in tables[seq.seq_id][:end]]
            assert read == self.named(seq, end)[:end], f"{seq} does not read its own {end} tokens"
            self.num_read += end

    def holding(self, status=None):
        """The sequences on the device, of groups with that status if one is given."""
        groups = self.state.running.values()
        return [seq for group in groups if status in (None, group.status) for seq in group.resident]

    def named(self, seq, num_tokens):
        """The tokens of a sequence, which generates as many as it has fewer than num_tokens."""
        if seq.seq_id not in self.tokens:
            content = seq.prompt_ids or [("alone", seq.request_id, i) for i in range(seq.prompt_len)]
            registered = seq.registered_prefix if self.pinned else 0
            own = [(content[i // seq.tokens_per_id], i % seq.tokens_per_id) for i in range(registered, seq.prompt_len)]
            self.tokens[seq.seq_id] = [("prefix", i) for i in range(registered)] + own
        tokens = self.tokens[seq.seq_id]
        tokens += [("generated", seq.seq_id, i, object()) for i in range(len(tokens), num_tokens)]
        return tokens
