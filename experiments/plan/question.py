"""The question to a plan: the SLO, the share of requests that must keep it, and the seeds."""

from dataclasses import dataclass

from testbed.run.config import Slo
from testbed.run.metrics import PERCENTILES


@dataclass(frozen=True)
class Question:
    """precision: a highest rate is known to a factor of 1 + precision."""

    slo: Slo
    share: float
    seeds: tuple[int, ...]
    precision: float

    @property
    def objectives(self) -> dict[str, float]:
        """The limits in s that are set, by name."""
        return {name: limit for name, limit in self.slo.limits.items() if limit is not None}

    @property
    def percentile(self) -> str:
        """The percentile of a summary that is nearest to the share."""
        nearest = min(PERCENTILES, key=lambda percent: abs(percent - 100 * self.share))
        return f"p{nearest}"
