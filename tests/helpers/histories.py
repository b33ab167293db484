"""What policies answer in a few histories of the contract: golden rows."""

from random import Random
from zlib import crc32

from testbed.contract import check_policy
from testbed.contract.histories import Histories
from testbed.contract.search import POOLS, Harness


def keeps_the_contract(golden, name, make, pools=POOLS, num_examples=2):
    """No history breaks a clause; the answers and tables in two of each pool are those of the golden row."""
    if num_examples > 2:
        broken = check_policy(make, pools, num_examples)
        assert broken is None, f"{broken}\n" + "\n".join(broken.calls)
    answers, calls = [], []
    for pool in pools:
        histories = Histories(make(pool), pool.max_len, Random(0))
        for _ in range(2):
            harness = Harness(lambda pool=pool: make(pool), pool)
            answers += harness.run(histories.draw(40))
            calls += harness.questions.log
            answers += [harness.policy.tier_slots(), harness.policy.counters()]
        calls += [f"{call}" for _ in range(20) for call in histories.draw(40)]
    refused, digest = sum("-> Refusal" in call for call in calls), crc32(repr((calls, answers)).encode())
    golden("histories.csv", name, {"calls": len(calls), "refused": refused, "checksum": f"{digest:08x}"})
