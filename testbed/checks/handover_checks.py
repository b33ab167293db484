"""The contract of hand-over rules, as a check of a class over random prompts.

9 The same prompt takes the same time, whatever was sent before, by every rule of the class. 10
left_ps() raises no error and answers an int of at least 0, in ps. 17 A call changes neither the
link's latency nor whether slots are reserved. 19 A prompt of which the decode engine has more is
not longer on its way; one that it has whole takes no time.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from random import Random
from typing import TypeAlias

from testbed.checks.contract.clauses import ClauseBroken, broken_in, require
from testbed.core.units import PS
from testbed.fleet.handovers.rule import Computed, HandoverRule, Sending

MakeHandover: TypeAlias = Callable[[], HandoverRule]
SHARES = (0, 1, 3, 4)  # quarters of a prompt that the decode engine has


def check_handover(make: MakeHandover, num_examples: int = 200) -> ClauseBroken | None:
    """The clause that a rule breaks, with the prompt that breaks it; None if it keeps all."""
    rule, again, asked = make(), make(), list[Sending]()
    constants = _constants(rule)

    def check() -> None:
        for sending in sendings(Random(0), num_examples):
            asked.append(sending)
            left_ps = checked_ps(rule, sending)
            require(9, checked_ps(rule, sending) == left_ps, f"{left_ps} ps, and then another time")
            require(17, _constants(rule) == constants, "left_ps() changed the rule")
            _check_skipped(rule, sending)
        for sending in reversed(asked):
            same = checked_ps(again, sending) == checked_ps(rule, sending)
            require(9, same, "another rule, called in another order, takes another time")

    return broken_in(check, "left_ps()", lambda: [f"left_ps({sending})" for sending in asked[-1:]])


def sendings(random: Random, count: int) -> Iterator[Sending]:
    """Prompts in one or several parts, of which the prefill engine may have had the beginning."""
    for _ in range(count):
        num_tokens, start = random.choice([1, 16, random.randint(1, 4000)]), 0
        stored, end_ps, parts = random.choice([0, 0, num_tokens // 2]), 0, list[Computed]()
        while stored < num_tokens:
            new = random.randint(1, num_tokens - stored)
            start = end_ps + random.choice([0, 0, PS // 100])
            end_ps = start + random.randint(1, PS // 10)
            parts.append(Computed(stored, new, start, end_ps))
            stored += new
        extents = random.randint(1, 1 + num_tokens // 16)
        slot_bytes, layers = random.choice([2, 131072]), random.choice([1, 32])
        yield Sending(num_tokens, 0, extents, slot_bytes, layers, tuple(parts))


def checked_ps(rule: HandoverRule, sending: Sending) -> int:
    """The rule's answer, if it is a time."""
    left_ps: object = rule.left_ps(sending)
    is_time = type(left_ps) is int and left_ps >= 0
    require(10, is_time, f"left_ps() answered {left_ps!r}; a time is an int of at least 0, in ps")
    assert isinstance(left_ps, int)
    return left_ps


def _check_skipped(rule: HandoverRule, sending: Sending) -> None:
    """Clause 19, for the same prompt with more and more of it at the decode engine."""
    times = []
    for share in SHARES:
        skipped = sending.num_tokens * share // SHARES[-1]
        extents = sending.num_extents if skipped < sending.num_tokens else 0
        asked = sending._replace(num_skipped=skipped, num_extents=extents)
        times.append(checked_ps(rule, asked))
    shorter = all(later <= earlier for earlier, later in pairwise(times))
    require(19, shorter, f"with more of the prompt there it takes longer: {times} ps")
    require(19, not times[-1], f"a prompt that is there already takes {times[-1]} ps")


def _constants(rule: HandoverRule) -> tuple[object, ...]:
    return rule.latency_ps, rule.reserves
