"""The arena's score of one policy."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """A policy on the workloads of a suite, beside LRU with the same requests; smaller is better.

    Attributes:
        job: mean time of a job in percent of LRU's, the geometric mean over workloads, pools and
            loads.
        hits: mean share of prompt tokens that the prefix cache has.
        ttft_p99, itl_p99: in percent of LRU's.
        rejected: requests that the policy rejects though LRU serves them, by condition; such a
            score does not count.
        jobs: `job` of each condition.
    """

    job: float
    hits: float
    ttft_p99: float
    itl_p99: float
    rejected: Mapping[str, int]
    jobs: Mapping[str, float]

    def __float__(self) -> float:
        """The number to minimize: `job`, infinite for a policy that rejects requests."""
        return float("inf") if self.rejected else self.job
