"""A count of prefix hits beside the policy's own (clause 8)."""

from collections.abc import Sequence

from testbed.checks.contract.clauses import require
from testbed.core.sequence import Sequence as Seq
from testbed.memory.capabilities import Capabilities

NAMES = ("prompts", "tokens", "hit_tokens")  # of counters, from which a summary has its hit rate


class CountedHits:
    """Sums over the first admissions of requests whose prompts were looked up; a policy whose
    counters() have one of NAMES reports these sums.
    """

    def __init__(self) -> None:
        self._sums = dict.fromkeys(NAMES, 0)

    def check(self, memory: Capabilities, seqs: Sequence[Seq], num_found: int) -> None:
        """Count an admission that has found num_found tokens, and compare."""
        first = seqs[0]
        if memory.publishes is None:
            return
        if not first.num_preemptions and not first.registered_prefix:
            for name, added in zip(NAMES, (1, first.prompt_len, num_found), strict=True):
                self._sums[name] += added
        counters = memory.policy.counters()
        for name, expected in self._sums.items():
            counted = counters.get(name, expected)
            require(8, counted == expected, f"counters() has {name} {counted}, not {expected}")
