"""Names of options that ship, as types, so that an editor can complete them; `testbed list` shows all."""

from typing import Literal

PolicyName = Literal[
    "contiguous_max", "contiguous_oracle", "contiguous_pow2", "grouped", "grouped_caching", "paged", "paged_2023",
    "prefix_caching", "prefix_caching_v1", "prefix_caching_v1_33", "tiered", "tiered_exclusive",
]  # fmt: skip
SchedulerName = Literal[
    "by_session", "chunked", "mixed", "mixed_2023", "priority", "separate", "static", "time_to_live", "vllm_v1",
    "vllm_v1_async",
]  # fmt: skip
PreemptionName = Literal["paper", "recompute", "recompute_tail", "swap"]
