"""Lower bounds of the times of a candidate's engines, from its cost model and its data sheets.

Assumptions, each tested (tests/experiments/test_plan_bounds.py) with the cost models that ship:

- An iteration takes no less time than its longest decode would alone, or the shortest prompt, but
  for the noise of measured tables, in which 10 tokens may take a little less time than one.
- No cost model computes faster than the GPUs' peak, or than its own `least`, or reads weights and K
  and V faster than their memory's bandwidth; attention and matrix products take turns.
"""

from dataclasses import dataclass
from functools import cached_property
from inspect import isclass

from testbed.core.request import PS
from testbed.cost.model import CostModel, Work
from testbed.fleet.handovers.rule import HandoverRule
from testbed.fleet.handovers.whole import Whole
from testbed.run.config import RunConfig
from testbed.run.machine import cost_of, make_pool

FULL_BITS = 16  # of a weight at whose products the data sheet's peak is counted


@dataclass(frozen=True)
class Machine:
    """One engine of a candidate, and how many of them prefill and decode."""

    config: RunConfig

    @cached_property
    def cost(self) -> CostModel:
        return cost_of(self.config)

    @cached_property
    def num_slots(self) -> int:
        """Slots of an engine's pool."""
        return make_pool(self.config).num_slots

    @property
    def max_len(self) -> int:
        """Tokens of the longest request, prompt and output, that an engine does not reject."""
        return self.config.model.max_len

    @property
    def stores_all_tokens(self) -> bool:
        """True if a sequence needs a slot for each token: no layer has windows or states."""
        model = self.config.model
        return model.window is None and model.states is None

    @property
    def num_prefill_engines(self) -> int:
        """Engines that may compute prompts."""
        return self.config.prefill_replicas or self.config.replicas or 1

    @property
    def num_decode_engines(self) -> int:
        """Engines that may decode."""
        return (self.config.replicas or 1) - (self.config.prefill_replicas or 0)

    @property
    def max_num_batched_tokens(self) -> int | None:
        """The most tokens of an iteration, by a scheduler of vLLM V1; None: no limit is known."""
        part = self.config.scheduler
        scheduler = part.maker("scheduler")
        is_class = isclass(scheduler)
        if not (is_class and scheduler.keeps_budget):
            return None
        return _positive_int(part.parameters.get("max_num_batched_tokens"))

    @property
    def tokens_a_step(self) -> int:
        """The most tokens that an iteration gives a sequence: more than one with drafts."""
        part = self.config.speculation
        return 1 if part is None else 1 + part.make("speculation").max_drafts

    @property
    def max_num_seqs(self) -> int | None:
        """The most sequences of an iteration; None: no limit is known."""
        return _positive_int(self.config.scheduler.parameters.get("max_num_seqs"))

    def prompt_s(self, prompt_len: int) -> float:
        """The least seconds in which an idle engine computes a prompt.

        This is not the time of the prompt in as few parts as possible: by measured tables, 8,193
        tokens may take less time as 1 and 8,192 than as 8,192 and 1.
        """
        return max(self.shortest_s, prompt_len * self.token_s)

    @cached_property
    def shortest_s(self) -> float:
        """The least seconds of an iteration that computes a prompt, or a part of one: not always
        that of one token, since measured tables are noisy.
        """
        counts = [*range(1, 257), *range(512, 65537, 256)]
        return min(self._prompts_ps(count) for count in counts) / PS

    def _prompts_ps(self, num_tokens: int) -> int:
        return self.cost.iteration(Work(prefill=((num_tokens, 0),), num_requests=1))

    @property
    def has_known_steps(self) -> bool:
        """True if `step_s` holds: it counts neither windows of the model nor drafts."""
        return not self.cost.windows and self.config.speculation is None

    def step_s(self, context: int) -> float:
        """The least seconds of an iteration that decodes a sequence of `context` tokens."""
        alone_s = self.cost.iteration(Work(1, context, context, num_requests=1)) / PS
        return alone_s - (self._prompts_ps(1) / PS - self.shortest_s)

    @cached_property
    def token_s(self) -> float:
        """The least seconds of an iteration for each of its tokens: by the cost model, if the
        scheduler limits the tokens of an iteration, and by the peak.
        """
        most = self.max_num_batched_tokens or 0
        shares = [self.cost.least(count) / count for count in range(1, most + 1)]
        return max(self._peak_token_s, min(shares, default=0) / PS)

    @property
    def _peak_token_s(self) -> float:
        """The seconds of a token's matrix products by the peak; the output projection is left out,
        since only some tokens go through it.
        """
        model, server = self.config.model, self.config.server
        params = model.active_params - model.vocab_size * model.hidden_size
        experts = model.experts.bits if model.experts else None
        bits = min(model.weight_bits or FULL_BITS, experts or FULL_BITS, FULL_BITS)
        peak = server.num_gpus * server.gpu.fp16_flops * FULL_BITS / bits
        return 2 * params / peak

    @cached_property
    def weights_s(self) -> float:
        """The least seconds in which an iteration reads the weights that every token needs."""
        model, server = self.config.model, self.config.server
        head = model.vocab_size * model.hidden_size * model.dtype_bytes
        read_bytes = model.read_bytes(model.experts.per_token if model.experts else 0) - head
        return read_bytes / (server.num_gpus * server.gpu.memory_bandwidth)

    @cached_property
    def context_s(self) -> float:
        """The least seconds in which a decode reads K and V of a token of its context."""
        model, server = self.config.model, self.config.server
        read_bytes = model.kv_bytes_per_token * model.kv_copies(server.num_gpus)
        return read_bytes / (server.num_gpus * server.gpu.memory_bandwidth)

    @property
    def handed_over_s(self) -> float | None:
        """The least seconds that the links of all prefill engines together need for a token of a
        prompt; None if prompts are not handed over, or not each as a whole.
        """
        if self.config.prefill_replicas is None:
            return None
        handover = self.config.handover
        rule: HandoverRule = Whole() if handover is None else handover.make("handover")
        if not isinstance(rule, Whole):
            return None  # layer by layer, a part of the time is hidden behind the prefill
        bandwidth = rule.bandwidth * self.config.prefill_replicas
        return self.config.model.kv_bytes_per_token / bandwidth


def _positive_int(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
