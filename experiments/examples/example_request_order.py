"""An order of requests outside the package: short prompts first, but none waits for ever."""

from testbed.core.request import PS, Incoming
from testbed.core.units import PositiveSeconds, PositiveTokens
from testbed.sched.orders import Order


class ShortestPromptAged(Order):
    """Serves a request as if it came later by a second for each `tokens_per_s` tokens of its
    prompt, at most by `patience_s`.

    The rank is fixed when a request arrives. A waiting request gets ahead of longer prompts that
    come later, because those rank by their own arrival: so the rank need not be asked again as time
    passes, and a span of many iterations stays one event of the simulation.
    """

    def __init__(
        self, tokens_per_s: PositiveTokens = 1000, patience_s: PositiveSeconds = 30.0
    ) -> None:
        self.tokens_per_s = tokens_per_s
        self.patience_ps = round(patience_s * PS)

    def rank(self, request: Incoming) -> tuple[int, ...]:
        """Whole numbers, the smallest first; requests of equal rank are served as they arrive."""
        later_ps = request.prompt_len * PS // self.tokens_per_s
        return (request.arrival_ps + min(later_ps, self.patience_ps),)
