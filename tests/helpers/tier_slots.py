"""Slots of a tier below the device, as a policy lists them."""


def tokens_below(policy, size, tier="dram"):
    """Tokens that a tier of `size` slots stores, and those that are being written to it.

    Raises AssertionError for slots that are listed twice, or lie outside the tier.
    """
    slots = policy.tier_slots()[tier]
    taken = sorted((*slots.cached, *slots.in_transit))
    for extent, later in zip(taken, [*taken[1:], None], strict=True):
        assert 0 <= extent.start < extent.start + extent.length <= size
        assert later is None or extent.start + extent.length <= later.start
    return tuple(sum(e.length for e in part) for part in (slots.cached, slots.in_transit))
