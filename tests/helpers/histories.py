"""What policies answer in a few histories of the contract: golden rows of counts."""

from collections import Counter

from testbed.contract import check_policy
from testbed.contract.search import POOLS, Harness, histories_of
from testbed.core.slots import Grant, Ops, Refusal, Usage

COLUMNS = [
    "calls",
    "admitted",
    "LATER",
    "NEVER",
    "LOADING",
    "cached_tokens",
    "taken_slots",
    "evicted_slots",
    "copied_slots",
    "moved_slots",
    "held_slots",
    "free_slots",
]


def keeps_the_contract(golden, name, make, pools=POOLS, num_examples=2, num_golden=4):
    """No history breaks a clause; the counts of what happens in some of each pool are those of the
    golden row.
    """
    if num_examples > 2:
        broken = check_policy(make, pools, num_examples)
        assert broken is None, f"{broken}\n" + "\n".join(broken.calls)
    golden("histories.csv", name, row_of(make, pools, num_golden))


def row_of(make, pools=POOLS, num_golden=4):
    """What happens in some histories of each pool, and how much is held and free after each call,
    summed.
    """
    counts = Counter()
    for pool in pools:
        histories = histories_of(make, pool)
        for _ in range(num_golden):
            harness = Harness(make, pool)
            for answer in harness.run(histories.draw()):
                counts.update(counted(answer))
            counts["calls"] += len(harness.questions.log)
    return {name: counts[name] for name in COLUMNS}


def counted(answer):
    """The counts of one answer, or of the pool after a call."""
    match answer:
        case Refusal():
            return {answer.name: 1}
        case list():
            return sum((Counter(counted(grant)) for grant in answer), Counter(admitted=1))
        case Grant():
            changed = {
                "cached_tokens": answer.num_cached,
                "taken_slots": answer.growth.slots,
                "evicted_slots": answer.evicted.slots,
            }
            return changed | counted(answer.ops)
        case Ops():
            moves = [*answer.moves, *(transfer.move for transfer in answer.background)]
            return {
                "copied_slots": sum(copy.length for copy in answer.copies),
                "moved_slots": sum(copy.length for move in moves for copy in move.copies),
            }
        case (Usage() as used, *_):
            return {"held_slots": used.held, "free_slots": used.free}
    return {}
