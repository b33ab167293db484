"""An order of requests: the shortest prompt first, in classes of `step` tokens."""

from testbed.core.request import Incoming
from testbed.core.units import PositiveTokens
from testbed.sched.orders import Order


class SmallestPrompt(Order):
    """Prompts of up to `step` tokens before those of up to twice as many, and so on."""

    def __init__(self, step: PositiveTokens = 256) -> None:
        self.step = step

    def rank(self, request: Incoming) -> tuple[int, ...]:
        return (-(-request.prompt_len // self.step), request.arrival_ps)
