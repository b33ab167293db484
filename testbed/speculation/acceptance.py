"""The number of a request's draft tokens that the model accepts: plug-ins of the simulator."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise

from testbed.core.errors import InputError
from testbed.core.units import Count, Share
from testbed.speculation.token_random import uniform, uniforms

DRAFTS, STATES = 0, 1  # streams of random numbers
ASSUMED = 0.7  # probability of a draft token, if nothing says how many are accepted


class Acceptance(ABC):
    """Answers for the model. Schedulers and policies never see it, nor its random numbers.

    An answer depends on the request and on the position in its output alone, so that two policies,
    and the same request after a preemption, have the same number.
    """

    @abstractmethod
    def accepted(self, request_id: int, num_generated: int, num_drafts: int) -> int:
        """The number of draft tokens that are accepted, counted from the first.

        Args:
            request_id: whose tokens.
            num_generated: output tokens before them.
            num_drafts: draft tokens.
        """


class ByToken(Acceptance):
    """A draft token is accepted with a probability, if all before it are."""

    def __init__(self, seed: Count = 0) -> None:
        self.seed = seed

    @abstractmethod
    def rates(self, request_id: int, num_generated: int, num_drafts: int) -> Sequence[float]:
        """The probabilities of the draft tokens, counted from the first, behind num_generated
        output tokens; those that it leaves out are never accepted.
        """

    def accepted(self, request_id: int, num_generated: int, num_drafts: int) -> int:
        rates = self.rates(request_id, num_generated, num_drafts)
        numbers = uniforms(self.seed, request_id, num_generated, num_drafts, DRAFTS)
        place = 0
        for number, rate in zip(numbers, rates, strict=False):
            if number >= rate:
                break
            place += 1
        return place


class Constant(ByToken):
    """The same probability for each draft token."""

    def __init__(self, rate: Share = ASSUMED, seed: Count = 0) -> None:
        super().__init__(seed)
        self._rate = rate

    def rates(self, request_id: int, num_generated: int, num_drafts: int) -> Sequence[float]:
        return (self._rate,) * num_drafts


class PerPosition(ByToken):
    """Measured rates by place in the draft: the share of drafts accepted up to that place, as vLLM
    logs them (`Per-position acceptance rate`). A token beyond the last place is never accepted.
    """

    def __init__(self, rates: list[Share], seed: Count = 0) -> None:
        super().__init__(seed)
        if not rates or sorted(rates, reverse=True) != list(rates):
            raise InputError(
                key="acceptance.rates",
                value=rates,
                problem=(
                    "each is the share of drafts that are accepted up to its place, so none is "
                    "larger than the one before"
                ),
                remedy="give them as the server logs them",
            )
        steps = pairwise([1.0, *rates])
        self._rates = [rate / before if before else 0.0 for before, rate in steps]

    def rates(self, request_id: int, num_generated: int, num_drafts: int) -> Sequence[float]:
        return self._rates


class Markov(ByToken):
    """Each request goes through easy and hard passages, by a chain of two states over its output.

    easy_rate, hard_rate: the probability that a draft token is accepted there. to_hard, to_easy:
    the probability that the passage ends with a token. A request begins in a passage drawn from the
    chain's long-run shares.
    """

    def __init__(
        self,
        easy_rate: Share = 0.9,
        hard_rate: Share = 0.4,
        to_hard: Share = 0.05,
        to_easy: Share = 0.05,
        seed: Count = 0,
    ) -> None:
        super().__init__(seed)
        if not to_hard + to_easy:
            raise InputError(
                key="acceptance.to_hard",
                value="0, to_easy=0",
                problem="a request would stay where it begins",
                remedy="give one",
            )
        self._rates = (easy_rate, hard_rate)
        self._leave = (to_hard, to_easy)
        self._states: dict[int, bytearray] = {}

    def rates(self, request_id: int, num_generated: int, num_drafts: int) -> Sequence[float]:
        positions = range(num_generated, num_generated + num_drafts)
        return [self._rates[self._state(request_id, position)] for position in positions]

    def _state(self, request_id: int, position: int) -> int:
        """0 in an easy passage, 1 in a hard one; the chain is drawn as far as it is read."""
        states = self._states.get(request_id)
        if states is None:
            to_hard, to_easy = self._leave
            hard_share = to_hard / (to_hard + to_easy)
            begins_hard = uniform(self.seed, request_id, 0, STATES) < hard_share
            states = self._states[request_id] = bytearray([begins_hard])
        while len(states) <= position:
            leaves = uniform(self.seed, request_id, len(states), STATES) < self._leave[states[-1]]
            states.append(states[-1] ^ leaves)
        return states[position]
