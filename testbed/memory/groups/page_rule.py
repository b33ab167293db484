"""Chooses the pool of pages by the name of its rule."""

from collections.abc import Callable
from typing import Any

from testbed.core.errors import InputError, check_known
from testbed.memory.groups.large_pages import LargePages
from testbed.memory.groups.page_rules import FixedSplit, OnePageSize, PagePool
from testbed.memory.policy import PoolSpec

ONE_PAGE_SIZE, FIXED_SPLIT = "one_page_size", "fixed_split"
RULES: dict[str, Callable[..., PagePool]] = {
    ONE_PAGE_SIZE: OnePageSize,
    "large_pages": LargePages,
    FIXED_SPLIT: FixedSplit,
}
WINDOW_SHARE = 0.8  # SGLang's default


def pages_by(rule: str, pool: PoolSpec, block_size: int, window_share: float) -> PagePool:
    """The pages of a pool whose slots are divided by this rule.

    Raises:
        InputError: an unknown rule, a value that nothing reads, or groups that are not modelled.
    """
    check_known("page_rule", rule, RULES)
    if rule != FIXED_SPLIT and window_share != WINDOW_SHARE:
        raise InputError(
            key="window_share",
            value=window_share,
            problem="nothing reads it",
            remedy=f"set policy.page_rule={FIXED_SPLIT}",
        )
    _check_groups(pool)
    options: dict[str, Any] = {"window_share": window_share} if rule == FIXED_SPLIT else {}
    return RULES[rule](pool.num_slots * pool.num_layers, pool.groups, block_size, **options)


def _check_groups(pool: PoolSpec) -> None:
    if not pool.groups:
        raise InputError(
            key="policy",
            value="grouped",
            problem="the pool has no KV groups",
            remedy="give PoolSpec.groups, as a run's model does",
        )
    if len({group.slot_bytes for group in pool.groups if not group.state_bytes}) > 1:
        raise InputError(
            key="policy",
            value="grouped",
            problem=(
                "the model's layers with a window cache another number of bytes a token than its "
                "others; pages of such groups are not modelled"
            ),
            remedy="choose policy=paged or prefix_caching, which store all tokens in all layers",
        )
