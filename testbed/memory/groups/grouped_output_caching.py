"""Prefix caching over several KV groups as vLLM V1 has it: pages of generated tokens stay too."""

from typing import Any

from testbed.core.errors import InputError
from testbed.core.units import PositiveTokens, Share
from testbed.memory.groups.cached_contents import OutputContents
from testbed.memory.groups.grouped_caching import GroupedCaching
from testbed.memory.groups.page_rule import ONE_PAGE_SIZE
from testbed.memory.policy import PoolSpec
from testbed.vllm.releases import DEFAULT, Release


class GroupedOutputCaching(GroupedCaching):
    """GroupedCaching whose pages of generated tokens, and of prompts without ids, are findable by
    their own sequence (see OutputContents). caching: the options of GroupedCaching.

    Raises:
        InputError: another page rule than vLLM's.
    """

    def __init__(
        self,
        pool: PoolSpec,
        block_size: PositiveTokens = 16,
        *,
        page_rule: str = ONE_PAGE_SIZE,
        watermark: Share = 0.0,
        release: Release = DEFAULT,
        **caching: Any,
    ) -> None:
        if page_rule != ONE_PAGE_SIZE:
            raise InputError(
                "this is the manager of vLLM, whose pages have one size "
                "(set page_rule=one_page_size, or choose policy=grouped_caching)",
                key="page_rule",
                value=str(page_rule),
            )
        super().__init__(
            pool,
            block_size,
            watermark=watermark,
            release=release,
            contents=OutputContents(release),
            **caching,
        )
