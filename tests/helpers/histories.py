"""What policies answer in a few histories of the contract: golden rows."""

from random import Random
from zlib import crc32

from testbed.contract import check_policy
from testbed.contract.histories import Histories
from testbed.contract.search import POOLS, Harness


def keeps_the_contract(golden, name, make, pools=POOLS, num_examples=2, num_golden=4):
    """No history breaks a clause; the answers and tables in some of each pool are those of the
    golden row.
    """
    if num_examples > 2:
        broken = check_policy(make, pools, num_examples)
        assert broken is None, f"{broken}\n" + "\n".join(broken.calls)
    golden("histories.csv", name, row_of(make, [], pools, num_golden))


def row_of(make, answers, pools=POOLS, num_golden=4):
    """How many calls some histories make, how many are refused, and a checksum of all calls and
    answers.
    """
    calls = []
    for pool in pools:
        histories = Histories(make(pool), pool.max_len, Random(0))
        for _ in range(num_golden):
            harness = Harness(lambda pool=pool: make(pool), pool)
            answers += harness.run(histories.draw())
            calls += harness.questions.log
            answers += [harness.policy.tier_slots(), harness.policy.counters()]
        calls += [f"{call}" for _ in range(20) for call in histories.draw()]
    refused, digest = (
        sum("-> Refusal" in call for call in calls),
        crc32(repr((calls, answers)).encode()),
    )
    return {"calls": len(calls), "refused": refused, "checksum": f"{digest:08x}"}
