"""Preempts the group that is cheapest to bring back, and brings each back in the cheaper way."""

from testbed.core.slots import DEVICE, HOST, ceil_div
from testbed.cost.model import Moved, Work
from testbed.sched.preemption import PreemptionRule, Recovery


class CheapestVictim(PreemptionRule):
    """The victim is the group with the lowest cost for each block of block_size slots that it
    frees.

    A group comes back by swapping out and in, or by computing again what its sequences store, a
    sequence at a time; costs are the cost model's, for the work alone. Ties go to the group that
    came last.
    """

    def __init__(self, cost, block_size: int = 16) -> None:
        super().__init__(cost)
        self.block_size = block_size

    def victim(self, running, batch):
        return min(reversed(running.values()), key=self.cost_of_a_block)

    def recovery(self, group):
        return (
            Recovery.SWAP if self.swap_ps(group) < self.recompute_ps(group) else Recovery.RECOMPUTE
        )

    def cost_of_a_block(self, group):
        """Picoseconds for each block that preempting the group frees."""
        return min(self.swap_ps(group), self.recompute_ps(group)) / max(self.num_blocks(group), 1)

    def num_blocks(self, group):
        """Blocks that the group's sequences hold, as if they shared none."""
        return sum(ceil_div(seq.num_slots, self.block_size) for seq in group.resident)

    def swap_ps(self, group):
        """Cost of moving the group to the host and back."""
        count = self.num_blocks(group)
        out, back = (
            Moved(*tiers, self.block_size, count) for tiers in ((DEVICE, HOST), (HOST, DEVICE))
        )
        return self.cost.iteration(Work(moves=(out, back)))

    def recompute_ps(self, group):
        """Cost of computing the group's tokens again."""
        return len(group.resident) * self.cost.iteration(Work(prefill=((group.prefill_len, 0),)))
