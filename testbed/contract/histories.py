"""Random histories of calls: a crowd, then single calls and scenes in which most of what can break does break."""

from collections.abc import Callable
from random import Random

from testbed.contract.calls import (
    Admit,
    Call,
    Extend,
    Flood,
    Join,
    Move,
    Preempt,
    Refork,
    Register,
    Release,
    Return,
    Run,
    Step,
)
from testbed.memory.policy import MemoryPolicy

MAX_PICK = 11


class Histories:
    """Draws histories for such a policy, whose longest sequence is max_len tokens; only what its traits allow."""

    def __init__(self, policy: MemoryPolicy, max_len: int, random: Random) -> None:
        self.policy = policy
        self.max_len = max_len
        self.random = random
        swaps = [self.swapped, self.brought_back] if policy.moves_tiers else []
        self._scenes: list[Callable[[], list[Call]]] = [self.few, self.decode, self.again, self.preempted, *swaps]

    def draw(self, max_calls: int) -> list[Call]:
        """A history of about max_calls calls, or fewer: a pool that is not crowded yet refuses other things."""
        calls: list[Call] = []
        if self.policy.shares and self.random.random() < 0.4:
            calls.append(Register(self.random.randint(1, self.max_len // 3)))
        calls += [self.admission() for _ in range(self.random.randint(0, 6))]
        num_calls = self.random.randint(1, max_calls)
        while len(calls) < num_calls:
            calls += self.random.choice(self._scenes)()
        return calls

    def single(self) -> Call:
        """Any one call, but those that only make sense in a scene."""
        random, pick = self.random, self.pick()
        kind = random.randrange(10)
        if kind < 3:
            return self.admission()
        if kind < 5:
            return Step(random.choice([1, random.randint(1, 40)]))
        others = (Join(pick), Join(pick), Release(pick), Extend(pick, self.length()), Refork(pick, self.pick()))
        return others[kind - 5]

    def few(self) -> list[Call]:
        """Up to three calls."""
        return [self.single() for _ in range(self.random.randint(0, 3))]

    def decode(self) -> list[Call]:
        """A group decodes with the batch, some steps at once and one by one."""
        return [Run(), Join(self.pick()), Step(self.length()), Step(1), *self.few()]

    def meanwhile(self) -> list[Call]:
        """What happens while a group is away."""
        return [*self.few(), Flood()] if self.random.random() < 0.5 else self.few()

    def again(self) -> list[Call]:
        """A request, what happens meanwhile, and the same request once more, in the same plan or later."""
        admit = self.admission()
        return [admit, *self.meanwhile(), admit]

    def preempted(self) -> list[Call]:
        """A group decodes, is preempted by release and comes back."""
        pick = self.pick()
        chunk = self.random.choice([0, self.length()])
        return [Run(), Extend(pick, self.length()), Preempt(pick), *self.meanwhile(), Return(0, chunk), *self.few()]

    def swapped(self) -> list[Call]:
        """A group is swapped out and in, and once more with a token that it has generated meanwhile."""
        pick = self.pick()
        trip = [Move(pick), *self.meanwhile(), Move(pick)]
        return [Run(), *trip, Extend(pick, 1), Run(), *trip]

    def brought_back(self) -> list[Call]:
        """The newest group is swapped out and in, and somebody asks for what it brings back."""
        admit = self.admission()
        return [admit, Run(), Move(0), *self.meanwhile(), Move(0), *self.meanwhile(), admit]

    def admission(self) -> Admit:
        """A new request; where the policy caches prefixes, most of them tell one of two stories."""
        random = self.random
        prompt_len = random.choice([self.length(), self.length(), random.randint(1, self.max_len - 1)])
        output_len, num_seqs = random.randint(1, self.max_len // 2), random.choice([1, 1, 2, 3])
        chunk = random.choice([0, 0, self.length()])
        if self.policy.caches_prefixes and random.random() < 0.7:
            shared = random.choice([prompt_len, random.randint(1, prompt_len)])
            return Admit(prompt_len, output_len, random.randrange(2), shared, chunk, num_seqs)
        provided = self.policy.shares and random.random() < 0.5
        return Admit(prompt_len, output_len, 0, 0, chunk, num_seqs, provided)

    def length(self) -> int:
        """Tokens, of which two fit a sequence."""
        return self.random.randint(1, self.max_len // 2)

    def pick(self) -> int:
        """Which of those that are there, the newest first."""
        return self.random.randint(0, MAX_PICK)
