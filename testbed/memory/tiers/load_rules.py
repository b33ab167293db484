"""Rules by which a waiting prompt loads its part in a lower tier, or computes it again."""

from testbed.core.errors import InputError
from testbed.core.units import NonNegative
from testbed.memory.policy import PoolSpec, Tier


class LoadRule:
    """Called when a request is about to be admitted."""

    def is_worth(self, pool: PoolSpec, tier: Tier, num_tokens: int) -> bool:
        """True if to load tokens of a prompt from a tier.

        Args:
            pool: the pools, with the bytes of a token.
            tier: that has them.
            num_tokens: how many it has.
        """
        return True


class LoadAlways(LoadRule):
    """Loads all blocks that the tiers have."""


class LoadNever(LoadRule):
    """Nothing: what the device has not is computed again."""

    def is_worth(self, pool: PoolSpec, tier: Tier, num_tokens: int) -> bool:
        return False


class LoadIfFaster(LoadRule):
    """Blocks that the tier brings sooner than a prefill of prefill_tokens_per_s would compute them,
    without queueing for either.

    A policy has no cost model, so the rate is the user's: prompt tokens/s of the server.
    """

    def __init__(self, prefill_tokens_per_s: NonNegative) -> None:
        if not prefill_tokens_per_s > 0:
            raise InputError(
                key="prefill_tokens_per_s", value=prefill_tokens_per_s, problem="must be above 0"
            )
        self.prefill_tokens_per_s = prefill_tokens_per_s

    def is_worth(self, pool: PoolSpec, tier: Tier, num_tokens: int) -> bool:
        """True if the tier brings num_tokens sooner than the server would compute them. Raises
        InputError for a tier without a bandwidth.
        """
        if not tier.bandwidth:
            raise InputError(
                key="the load rule LoadIfFaster", problem=f"the tier {tier.name} has no bandwidth"
            )
        num_bytes = num_tokens * pool.layer_bytes * pool.num_layers
        return tier.latency_s + num_bytes / tier.bandwidth < num_tokens / self.prefill_tokens_per_s
