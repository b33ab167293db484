"""Requests that are longer than the server takes: a part of the trace, which no load changes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from testbed.core.errors import InputError
from testbed.run.config import RunConfig
from testbed.run.speculating import capping_drafter
from testbed.run.summaries import way_to_longer
from testbed.run.workload import make_workload
from testbed.study.knee import NotSustained

NUM_DRAWN = 10_000  # requests that show the share of their trace


@dataclass(frozen=True)
class TooLong:
    """The requests of a search that the server rejects at any rate, which keep no objective.

    A run has a few more or less of them than the trace, by chance and by its rate: counted by the
    share of the trace, they move no rate that a search finds.

    share: of the trace's requests; configure: the config of the run at a rate.
    """

    share: float
    configure: Callable[[float], RunConfig]

    def inside(self, summary: dict[str, Any], rate: float) -> float | None:
        """The share of the requests that keep the objectives in the run at this rate; None if no
        request arrives that the server takes.
        """
        inside: float | None = summary["slo"]["share_inside"]
        if inside is None or not self.share:
            return inside
        arrived = int(summary["requests"]["arrived"])
        taken = int(np.sum(~_are_too_long(self.configure(rate))))
        return (1 - self.share) * inside * arrived / taken if taken else None

    def check(self, share: float) -> None:
        """Raise NotSustained if too few requests are left to keep this share."""
        if 1 - self.share < share:
            config = self.configure(1.0)
            max_len = config.model.max_len
            raise NotSustained(
                key="share",
                value=f"{share:g}",
                problem=(
                    f"{100 * self.share:.3g}% of the requests are longer than the {max_len:,} "
                    "tokens that the server takes (model.max_len), so no rate keeps it"
                ),
                remedy=(
                    f"{way_to_longer(capping_drafter(config))}, send shorter requests, or lower "
                    "share"
                ),
            )


def too_long(configure: Callable[[float], RunConfig]) -> TooLong:
    """The requests that are too long, by NUM_DRAWN requests of the trace."""
    config = configure(1.0)
    duration_s = config.arrivals.parameters.get("duration_s") or NUM_DRAWN
    try:
        are_too_long = _are_too_long(configure(NUM_DRAWN / duration_s))
    except InputError:  # which the first run refuses too, or it has fewer requests
        return TooLong(0.0, configure)
    return TooLong(float(are_too_long.mean()) if len(are_too_long) else 0.0, configure)


def _are_too_long(config: RunConfig) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """True for each request that is longer than the server takes; engines that are not alike may
    take it elsewhere.
    """
    rows = make_workload(config).rows
    if config.servers:
        return np.zeros(len(rows), np.bool_)
    return np.asarray(rows.prompt_len + rows.output_len > config.model.max_len)
