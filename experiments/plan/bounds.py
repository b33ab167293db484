"""Bounds that no simulation can exceed: the share of requests that may keep the SLO, and the share
of the engines' time that the requests must take at least. Their assumptions are those of `machine`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import ceil, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.experiments.plan.demand import Demand, Numbers
from testbed.experiments.plan.time_bounds import Machine
from testbed.run.config import Slo

Flags = NDArray[np.bool_]
DOES_NOT_FIT = "does not fit"
PREFILL = "prefill"
DECODE = "decode"
MEMORY = "memory"
LINK = "link"


class Reason(NamedTuple):
    """The reason why a candidate cannot keep the SLO: the limit, and the numbers."""

    limit: str
    text: str


@dataclass(frozen=True)
class Bounds:
    """The bounds of one candidate with the requests of one run.

    share: of the requests that must keep the SLO.
    """

    machine: Machine
    demand: Demand
    slo: Slo
    share: float

    def reason(self) -> Reason | None:
        """The reason why the SLO is missed for certain; None if arithmetic does not say so."""
        return self.too_slow() or self._overloaded()

    @cached_property
    def loads(self) -> dict[str, float]:
        """By limit, the least time that the cheapest `share` of the requests takes of the engines,
        over the time that there is until the last of them must be answered. Above 1 no run keeps
        the SLO.

        Only work with a deadline counts: with a TTFT objective that of prompts, with both that of
        outputs too. Requests that wait for answers have no fixed time, and no load.
        """
        demand, slo = self.demand, self.slo
        if demand.arrival_s is None or slo.ttft_s is None or not self._holds:
            return {}
        first_s = float(demand.arrival_s.min())
        until_first_token_s = float(demand.arrival_s.max()) + slo.ttft_s - first_s
        loads = {PREFILL: self._prompts_s() / until_first_token_s}
        if slo.tpot_s is not None:
            longest_s = slo.tpot_s * float(demand.output_len.max() - 1)
            available_s = until_first_token_s + longest_s
            needs_s = {DECODE: self._decodes_s(), MEMORY: self._slots_s(), LINK: self._link_s()}
            loads |= {limit: needed_s / available_s for limit, needed_s in needs_s.items()}
        return loads

    @property
    def _holds(self) -> bool:
        """True if there are requests, each with one sequence, and all engines have one server, as
        the bounds assume.
        """
        is_mixed = bool(self.machine.config.servers)
        return len(self.demand) > 0 and self.demand.has_one_sequence and not is_mixed

    def too_slow(self, margin: float = 0.0) -> Reason | None:
        """The reason why too few requests would keep the SLO if each had an idle engine for itself;
        None if enough may. margin: standard errors by which the share must be too small.
        """
        if not self._holds:
            return None
        possible = np.logical_and.reduce(list(self._on_idle_engine.values()))
        share = float(possible.mean())
        error = sqrt(share * (1 - share) / len(possible))
        if share + margin * error >= self.share:
            return None
        limit, inside = min(self._on_idle_engine.items(), key=lambda entry: float(entry[1].mean()))
        texts = {
            DOES_NOT_FIT: f"fit a sequence of {self.machine.max_len:,} tokens (model.max_len)",
            MEMORY: f"fit the pool of {self.machine.num_slots:,} tokens",
            PREFILL: f"have a first token within {self.slo.ttft_s} s on an idle engine",
            DECODE: f"have {self.slo.tpot_s} s a token on an idle engine",
        }
        return Reason(limit, f"only {100 * inside.mean():.0f}% of the requests {texts[limit]}")

    @cached_property
    def _on_idle_engine(self) -> dict[str, Flags]:
        """The requests that keep to each limit."""
        return {
            DOES_NOT_FIT: np.asarray(self.demand.final_len <= self.machine.max_len),
            MEMORY: self._fits(),
            PREFILL: self._within(self.slo.ttft_s, self._first_tokens_s),
            DECODE: self._within(self.slo.tpot_s, self._steps_s) | (self.demand.output_len == 1),
        }

    def _overloaded(self) -> Reason | None:
        limit = max(self.loads, key=lambda name: self.loads[name], default="")
        if not limit or self.loads[limit] <= 1:
            return None
        return Reason(limit, f"needs {self.loads[limit]:.3g} times the time that there is")

    def _fits(self) -> Flags:
        """True for each request whose tokens, all but the last one, have slots in an empty pool."""
        if not self.machine.stores_all_tokens:
            return np.ones(len(self.demand), bool)
        return np.asarray(self.demand.final_len - 1 <= self.machine.num_slots)

    def _within(self, limit_s: float | None, seconds: Callable[[], Numbers | None]) -> Flags:
        if limit_s is None or (values := seconds()) is None:
            return np.ones(len(self.demand), bool)
        return np.asarray(values <= limit_s)

    def _first_tokens_s(self) -> Numbers:
        """The least TTFT of each request, if a cache has all of its prompt that any could have."""
        return _of_each(self.demand.own_len, self.machine.prompt_s)

    def _steps_s(self) -> Numbers | None:
        """The least seconds between tokens of each request."""
        if not self.machine.has_known_steps:
            return None
        return _of_each(
            self.demand.prompt_len + 1, lambda context: self.machine.step_s(context) or 0
        )

    def _cheapest(self, values: Numbers) -> float:
        """The sum over the `share` of the requests that has the least."""
        count = ceil(self.share * len(values) - 1e-9)
        return float(np.sort(values)[:count].sum())

    def _prompts_s(self) -> float:
        """Seconds of the prompts' matrix products, over the engines that prefill."""
        tokens = self._cheapest(self.demand.own_len)
        return tokens * self.machine.token_s / self.machine.num_prefill_engines

    def _decodes_s(self) -> float:
        """Seconds of the outputs' matrix products, and if all engines do both, of the prompts'
        too.
        """
        is_split = self.machine.config.prefill_replicas is not None
        tokens = self.demand.output_len - 1 + (0 if is_split else self.demand.own_len)
        return self._cheapest(tokens) * self.machine.token_s / self.machine.num_decode_engines

    def _slots_s(self) -> float:
        """Seconds in which the decodes read weights, once an iteration, and K and V that no other
        sequence reads.

        There are at least as many iterations as it takes to give every output token its turn: the
        slots that a sequence has at each of them sum up to at most the pool in each iteration.
        """
        machine, steps = self.machine, self.demand.output_len - 1
        iterations, read_s = 0.0, 0.0
        if machine.max_num_seqs is not None:
            iterations = self._cheapest(steps) / machine.max_num_seqs
        if machine.stores_all_tokens:
            contexts = steps * self.demand.own_len + steps * (steps + 1) / 2
            slot_steps = self._cheapest(contexts)
            iterations = max(iterations, slot_steps / machine.num_slots)
            read_s = slot_steps * machine.context_s
        needed_s = iterations * machine.weights_s + read_s
        return needed_s / machine.tokens_a_step / machine.num_decode_engines

    def _link_s(self) -> float:
        """Seconds in which prompts cross the links of the engines that prefill, but for what the
        engines that decode may have in a cache.
        """
        token_s = self.machine.handed_over_s
        if token_s is None:
            return 0.0
        handed_over = self.demand.own_len * (self.demand.output_len > 1)
        return self._cheapest(handed_over) * token_s


def _of_each(lengths: Numbers, seconds: Callable[[int], float]) -> Numbers:
    """The seconds of each length, computed once for equal ones."""
    values, places = np.unique(lengths.astype(int), return_inverse=True)
    return np.array([seconds(int(value)) for value in values])[places]
