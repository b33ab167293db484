"""Which tokens of which sequences an iteration computes: those of the plan, and the padding that it asks for."""

from collections.abc import Iterator

from kernels.engine.ragged import Part
from testbed.core.sequence import SequenceGroup
from testbed.sched.plan import Plan
from testbed.sched.residents import Residents

Owner = tuple[SequenceGroup, int]  # a group and which of its sequences


def parts_of(
    plan: Plan, stepping: list[SequenceGroup], residents: Residents
) -> tuple[list[Part], list[Part], list[Owner]]:
    """Prompts, decodes, and whom each row of the wanted logits is about.

    Padding computes tokens again that the same sequences have stored, and throws the result away: a batch that starts
    and ends together costs what it costs, but for attention to positions that nobody has.
    """
    prompts, owners = [], []
    for chunk in plan.chunks:
        whole = chunk.stored + chunk.new == chunk.group.prefill_len
        prompts.append(Part(chunk.seq, chunk.new, chunk.stored, chunk.seq.stored, whole))
        if whole:
            owners.append((chunk.group, chunk.group.sequences.index(chunk.seq)))
    members = [(group, i) for group in stepping for i in range(len(group.sequences))]
    stored = [(group.sequences[i], group.sequences[i].stored) for group, i in members]
    decodes = [Part(seq, 1, at, at, True) for seq, at in stored]
    if any(chunk.padding for chunk in plan.chunks):
        prompts += padding(plan)
    if plan.decode_seqs > len(members):
        decodes += ended(stepping, residents)
    return prompts, decodes, owners + members


def padding(plan: Plan) -> Iterator[Part]:
    """As many tokens as each chunk is padded by, never more at once than it has itself."""
    for chunk in plan.chunks:
        left = chunk.padding
        while left:
            again = min(left, chunk.stored + chunk.new)
            yield Part(chunk.seq, again, 0, again, False)
            left -= again


def ended(stepping: list[SequenceGroup], residents: Residents) -> list[Part]:
    """The last stored token of each sequence that has its output and waits for the rest of its batch."""
    decoding = {group.request.request_id for group in stepping}
    waiting = [group for request_id, group in residents.running.items() if request_id not in decoding]
    return [Part(seq, 1, seq.stored - 1, seq.stored, False) for group in waiting for seq in group.sequences]
