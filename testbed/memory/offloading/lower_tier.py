"""The pool that caches of servers need: one tier below the device, and no drafts."""

from testbed.core.errors import InputError
from testbed.core.slots import HOST
from testbed.memory.policy import PoolSpec, Tier
from testbed.memory.served import Drafts


def tier_below(pool: PoolSpec, cache: str) -> Tier:
    """The one tier below the device, apart from swap space. Raises InputError for more or none,
    which names the cache.
    """
    lower = [tier for tier in pool.tiers if tier.name != HOST]
    if len(lower) != 1:
        raise InputError(
            key="server.tiers",
            problem=f"{cache} one tier below the device, not {len(lower)}",
            remedy="+tier@server.tiers.dram=dram",
        )
    return lower[0]


def check_no_drafts(drafts: Drafts, cache: str) -> None:
    """Raise InputError if there are drafts, which no such cache is modelled with."""
    if drafts is not Drafts.NONE:
        raise InputError(
            key="speculation",
            problem=f"drafts are not modelled beside {cache}",
            remedy="leave one out",
        )
