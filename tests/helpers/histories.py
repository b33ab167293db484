"""Counts of policies in a few fixed histories of the contract: golden rows of plain counts."""

from dataclasses import asdict, dataclass, field

from digests import digest_of

from testbed.checks.contract.search import POOLS, Harness, check_policy, histories_of
from testbed.core.slots import Grant, Ops, Refusal, Usage


def keeps_the_contract(golden, name, make, pools=POOLS, num_examples=2, num_golden=2):
    """No history breaks a clause; what the policy does in some of each pool is counted in the
    golden row.
    """
    if num_examples > 2:
        broken = check_policy(make, pools, num_examples)
        assert broken is None, f"{broken}\n" + "\n".join(broken.calls)
    golden("histories.csv", name, row_of(make, pools, num_golden))


@dataclass
class Counts:
    """Of several histories. Slots and tokens are added up over all answers.

    later, never, loading: refusals by kind. found: prompt tokens that were cached already. taken:
    slots that extensions took, less those that a window gave back; evicted: those of them that were
    cached before. copied: on the device; moved: between tiers, while the sequence waits;
    background: transfers in the background.
    """

    admitted: int = 0
    later: int = 0
    never: int = 0
    loading: int = 0
    found: int = 0
    taken: int = 0
    evicted: int = 0
    copied: int = 0
    moved: int = 0
    background: int = 0
    held: list[int] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)

    def add(self, answer: object) -> None:
        """Count one answer of a policy, or what a check has seen of its pool."""
        match answer:
            case Refusal():
                kind = answer.name.lower()
                setattr(self, kind, getattr(self, kind) + 1)
            case [Grant(), *_]:
                self.admitted += len(answer)
                for grant in answer:
                    self._add_grant(grant)
            case Grant():
                self._add_grant(answer)
            case [Usage() as usage, *_]:
                self.held.append(usage.held)
                self.cached.append(usage.cached)

    def _add_grant(self, grant: Grant) -> None:
        self.found += grant.num_cached
        self.taken += grant.growth.slots
        self.evicted += grant.evicted.slots
        self._add_ops(grant.ops)

    def _add_ops(self, ops: Ops) -> None:
        self.copied += sum(copy.length for copy in ops.copies)
        for move in ops.moves:
            self.moved += sum(copy.length for copy in move.copies)
        self.background += len(ops.background)

    def row(self) -> dict[str, object]:
        """The counts, and the mean of the slots that were held and cached at every check."""
        counts = asdict(self)
        for name in ("held", "cached"):
            seen = counts.pop(name)
            counts[f"mean_{name}"] = f"{sum(seen) / len(seen):.2f}"
        return counts


def num_rejections(make, pool, calls):
    """The number of rejected drafts in a history."""
    harness = Harness(make, pool, thorough=False)
    harness.run(calls)
    return sum("rejected" in line for line in harness.questions.log)


def row_of(make, pools=POOLS, num_histories=2):
    """Counts of as many histories in each pool, drawn from one seed, and the digest of every answer
    and of the pool after it.
    """
    counts, answers = Counts(), []
    for pool in pools:
        histories = histories_of(make, pool)
        for _ in range(num_histories):
            harness = Harness(make, pool)
            for answer in harness.run(histories.draw()):
                counts.add(answer)
                answers.append(digest_of(answer))
    return counts.row() | {"answers": digest_of(answers)}
