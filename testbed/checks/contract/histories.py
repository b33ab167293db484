"""Calls of a scheduler to a memory policy, as values that can be shrunk, and random histories of
them.

The search draws these itself, for `testbed check` runs if no test packages are installed.
Hypothesis, given the same histories to draw, finds the same faults in 2 to 100 times the time and
shows up to three times as many calls.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

from testbed.memory.capabilities import Capabilities

MAX_CALLS, MAX_PICK = 40, 11
NUM_LONG = 120  # admissions of a long history, and about as many releases


@dataclass(frozen=True, slots=True)
class Admit:
    """A new request of num_seqs sequences with prompts of prompt_len tokens, that will end with
    output_len more at most.

    Its first `shared` tokens are those of `story`, which other prompts may share too. Slots are
    requested for its first `chunk` tokens, 0 for the whole prompt. It begins with the registered
    prefix if it is `provided`. One that only `waits` is loaded for and not admitted.
    """

    prompt_len: int
    output_len: int
    story: int = 0
    shared: int = 0
    chunk: int = 0
    num_seqs: int = 1
    provided: bool = False
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Act:
    """Anything else that happens; of groups, to the `pick`th of those that can, the newest first.

    register: a provider's prefix of `number` tokens, ahead of everything else. run: the plan is
    carried out. step: `number` tokens more for the lockstep batch. land: the `pick`th transfer
    under way ends. flood: requests that share nothing fill the pool and leave it, so that whatever
    is cached is evicted.

    extend: `number` tokens more of a group outside the batch. join: it joins the batch, or leaves
    it. refork: a candidate of a beam continues with those of candidate `number`. move: to the host,
    or back. truncate: a single sequence loses its last `number` slots. preempt: it loses all. Both
    compute again what these stored. draft: a single sequence computes `number` tokens, the second
    half of which is rejected and gives its slots back; speculate: the same, but these slots stay
    with it. lease: it ends, and its slots stay until end_lease. discard: it ends, and nothing of it
    is to be found. return: preempted, it requests slots for prompt and generated tokens, a single
    sequence for a chunk of `number` first, if not 0. release: it ends.
    """

    verb: str
    pick: int = 0
    number: int = 0


Call: TypeAlias = Admit | Act
RUN, FLOOD = Act("run"), Act("flood")


class Histories:
    """A crowd, then single calls and scenes in which most of what can break does break; only what
    the policy can do.

    serves_several: whether the policy serves requests of several sequences.
    """

    def __init__(
        self, memory: Capabilities, max_len: int, random: Random, *, serves_several: bool = True
    ) -> None:
        self.memory = memory
        self.serves_several = serves_several
        self.max_len = max_len
        self.random = random
        swaps = [self.swapped, self.brought_back] if memory.swaps is not None else []
        cached = [self.in_turn] if memory.publishes is not None else []
        always = [self.few, self.decode, self.again, self.preempted]
        self._cuts = Random(0)
        self._leases = Random(1)
        self._long = Random(2)
        self._drafts = Random(3)
        given_back = memory.layered, memory.drops_tokens, memory.stores_below
        self.keeps_rejected = all(part is None for part in given_back)
        self._scenes: list[Callable[[], list[Call]]] = [*always, *swaps, *cached]

    def draw(self) -> list[Call]:
        """A history of about MAX_CALLS calls, or fewer: a pool that is not crowded yet refuses
        other things.
        """
        calls: list[Call] = []
        if self.memory.forks is not None and self.random.random() < 0.4:
            calls.append(Act("register", 0, self.random.randint(1, self.max_len // 3)))
        calls += [self.admission() for _ in range(self.random.randint(0, 6))]
        num_calls = self.random.randint(1, MAX_CALLS)
        while len(calls) < num_calls:
            calls += self.random.choice(self._scenes)()
            if self.memory.transfers is not None:
                calls += [Act("land", self.pick()) for _ in range(self.random.randint(0, 3))]
        if self.memory.truncates is not None:
            calls += self.cut() if self._drafts.random() < 0.5 else self.drafted("draft")
        if self.memory.leases is not None:
            calls += self.leased()
        return calls

    def long(self) -> list[Call]:
        """Many small requests that come and go, for what goes wrong only after a number of calls.

        As `cut`, it has random numbers of its own.
        """
        random, calls = self._long, list[Call]()
        shares = self.memory.publishes is not None
        for _ in range(NUM_LONG):
            prompt_len = random.randint(1, max(self.max_len // 4, 1))
            shared = prompt_len if shares and random.random() < 0.5 else 0
            calls += [Admit(prompt_len, 2, random.randrange(2), shared), RUN]
            calls += [Act("release", random.randrange(3)) for _ in range(random.choice([0, 1, 2]))]
        return calls

    def single(self) -> Call:
        """Any one call, but those that only make sense in a scene."""
        random, pick = self.random, self.pick()
        kind = random.randrange(10)
        if kind < 3:
            return self.admission()
        if kind < 5:
            return Act("step", 0, random.choice([1, random.randint(1, 40)]))
        others = (
            Act("join", pick),
            Act("join", pick),
            Act("release", pick),
            Act("extend", pick, self.length()),
            Act("refork", pick, self.pick()),
        )
        return others[kind - 5]

    def few(self) -> list[Call]:
        return [self.single() for _ in range(self.random.randint(0, 3))]

    def decode(self) -> list[Call]:
        return [
            RUN,
            Act("join", self.pick()),
            Act("step", 0, self.length()),
            Act("step", 0, 1),
            *self.few(),
        ]

    def meanwhile(self) -> list[Call]:
        return [*self.few(), FLOOD] if self.random.random() < 0.5 else self.few()

    def again(self) -> list[Call]:
        """A request, what happens meanwhile, and the same request once more, in the same plan or
        later.
        """
        admit = self.admission()
        return [admit, *self.meanwhile(), admit]

    def preempted(self) -> list[Call]:
        pick = self.pick()
        chunk = self.random.choice([0, self.length()])
        gone = [RUN, Act("extend", pick, self.length()), Act("preempt", pick), *self.meanwhile()]
        return [*gone, Act("return", 0, chunk), *self.few()]

    def swapped(self) -> list[Call]:
        """A group is swapped out and in, and once more with a token that it has generated
        meanwhile.
        """
        pick = self.pick()
        trip = [Act("move", pick), *self.meanwhile(), Act("move", pick)]
        return [RUN, *trip, Act("extend", pick, 1), RUN, *trip]

    def cut(self) -> list[Call]:
        """A group loses its end once or twice, others admit and decode, and it computes its end
        again.

        The scene ends a history and has random numbers of its own, so that it takes nothing away
        from other scenes.
        """
        random, most = self._cuts, self.max_len // 2
        pick = random.randint(0, MAX_PICK)
        truncate = [
            Act("truncate", pick, random.randint(1, most)) for _ in range(random.randint(1, 2))
        ]
        others = Admit(random.randint(1, most), 1), Act("step", 0, random.randint(1, 20))
        meanwhile = others[: random.randint(0, 2)]
        return [
            RUN,
            *truncate,
            *meanwhile,
            Act("extend", random.randint(0, MAX_PICK), random.randint(1, most)),
            RUN,
        ]

    def speculating(self) -> list[Call]:
        """Groups that speculate, whose rejected drafts keep their slots, beside any others.

        Of policies that give slots back behind a sequence, for which no scheduler does that, it
        draws a history without drafts.
        """
        calls = self.draw()
        if self.keeps_rejected:
            calls += [call for _ in range(3) for call in self.drafted("speculate")]
        return calls

    def drafted(self, verb: str) -> list[Call]:
        """Two groups speculate in turn, others admit and leave, and one of the two is preempted.

        As `cut`, the scene has random numbers of its own.
        """
        random, calls = self._drafts, list[Call]([RUN])
        first, second = random.randint(0, MAX_PICK), random.randint(0, MAX_PICK)
        for _ in range(random.randint(1, 6)):
            calls += [Act(verb, random.choice([first, second]), random.randint(1, 9))]
            meanwhile: list[Call] = [Admit(random.randint(1, self.max_len // 2), 1), RUN]
            calls += meanwhile[: random.randint(0, 2)]
        return [*calls, Act("preempt", first), Act("return"), RUN, Act(verb, second, 4), RUN]

    def leased(self) -> list[Call]:
        """A group ends and leaves a lease, others come, and the lease ends; another group leaves
        nothing.

        As `cut`, the scene has random numbers of its own.
        """
        random, most = self._leases, self.max_len // 2
        come = [Admit(random.randint(1, most), 1) for _ in range(random.randint(1, 3))]
        lease, discard = (Act(verb, random.randint(0, MAX_PICK)) for verb in ("lease", "discard"))
        return [RUN, lease, *come, RUN, Act("end_lease"), discard, come[0], RUN]

    def brought_back(self) -> list[Call]:
        """The newest group is swapped out and in, and a new request looks for what it brings
        back.
        """
        admit = self.admission()
        return [
            admit,
            RUN,
            Act("move", 0),
            *self.meanwhile(),
            Act("move", 0),
            *self.meanwhile(),
            admit,
        ]

    def in_turn(self) -> list[Call]:
        """Two stories take turns as prompts, each long enough to evict the end of the other, which
        is then read.
        """
        lengths = [self.random.randint(self.max_len // 2, self.max_len - 1) for _ in range(2)]
        calls = list[Call]()
        for turn in range(5):
            story, length = turn % 2, lengths[turn % 2]
            calls += [Admit(length, 1, story, length), RUN, Act("release", 0)]
        return calls

    def admission(self) -> Admit:
        """A new request; if the policy caches prefixes, most prompts are one of two stories."""
        random = self.random
        prompt_len = random.choice(
            [self.length(), self.length(), random.randint(1, self.max_len - 1)]
        )
        output_len, num_seqs = random.randint(1, self.max_len // 2), random.choice([1, 1, 2, 3])
        num_seqs = num_seqs if self.serves_several else 1
        chunk = random.choice([0, 0, self.length()])
        if self.memory.publishes is not None and random.random() < 0.7:
            shared = random.choice([prompt_len, random.randint(1, prompt_len)])
            waits = self.memory.transfers is not None and random.random() < 0.3
            return Admit(
                prompt_len, output_len, random.randrange(2), shared, chunk, num_seqs, waits=waits
            )
        provided = self.memory.forks is not None and random.random() < 0.5
        return Admit(
            prompt_len=prompt_len,
            output_len=output_len,
            story=0,
            shared=0,
            chunk=chunk,
            num_seqs=num_seqs,
            provided=provided,
        )

    def length(self) -> int:
        return self.random.randint(1, self.max_len // 2)

    def pick(self) -> int:
        return self.random.randint(0, MAX_PICK)
