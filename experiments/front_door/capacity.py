"""`testbed.capacity`: the highest rate at which a share of the requests keeps the objectives."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.commands.arguments.capacity import PRECISION, SHARE
from experiments.front_door.options import asked
from experiments.front_door.sweep import measured
from experiments.paper.studies.knee import sustained_rate
from experiments.runs.build import slo_of
from experiments.runs.identity import plain
from testbed.core.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

MAX_REQUESTS = 3_000_000
Seen = Callable[[float, float], None]


@dataclass(frozen=True)
class Capacity:
    """rate: requests/s, known to a factor of 1 + precision. points: (rate, share inside, goodput in requests/s)."""

    rate: float
    share: float
    points: tuple[tuple[float, float, float], ...]

    @property
    def table(self) -> "pd.DataFrame":
        """What was simulated, in order of rate."""
        import pandas as pd

        return pd.DataFrame(self.points, columns=["rate_requests_per_s", "share_inside", "goodput_requests_per_s"])


def capacity(
    *overrides: str,
    ttft_s: float | None = None,
    tpot_s: float | None = None,
    share: float = SHARE,
    low: float = 0.5,
    high: float = 2.0,
    precision: float = PRECISION,
    folder: str | Path | None = None,
    seen: Seen | None = None,
    **options: Any,
) -> Capacity:
    """Look by bisection for the highest rate (requests/s) that keeps `share` of the requests inside the objectives.

    ttft_s: seconds to the first token; tpot_s: seconds for each later token; at least one, here or as slo.ttft_s=...
    among the overrides. low, high: the first guess in requests/s, moved outward as far as it takes. `folder` and the
    other options are those of `sweep`; `seen(rate, share_inside)` is called after every run. Raises InputError where no
    rate keeps the objectives, or every rate does.
    """
    if not 0 < share <= 1:
        raise InputError(f"share is {share}; it must be above 0 and at most 1")
    if not 0 < low < high:
        raise InputError(f"low is {low} and high is {high}; they must be rates above 0, the lower one first")
    if not precision > 0:
        raise InputError(f"precision is {precision}; it must be above 0")
    if options.get("rate") is not None or any(word.startswith("arrivals.rate=") for word in overrides):
        raise InputError("rate is what capacity looks for; say where to begin by low and high")
    slo = {key: value for key, value in (("slo.ttft_s", ttft_s), ("slo.tpot_s", tpot_s)) if value is not None}
    if not slo_of(plain(asked(overrides, {**options, **slo}).config)):
        raise InputError("no objective is given; say slo.ttft_s=... or slo.tpot_s=...")
    known: dict[float, tuple[float, float]] = {}

    def holds(rate: float) -> bool:
        rate = float(f"{rate:.4g}")
        if rate not in known:
            known[rate] = _inside(measured(overrides, {**options, **slo, "rate": rate}, folder), rate)
            if seen:
                seen(rate, known[rate][0])
        return known[rate][0] >= share

    found = sustained_rate(holds, low, high, precision)
    return Capacity(found, share, tuple((rate, *known[rate]) for rate in sorted(known)))


def _inside(summary: dict[str, Any], rate: float) -> tuple[float, float]:
    """Share inside and goodput, where there were requests to judge by, and not too many."""
    slo, arrived = summary["slo"], summary["requests"]["arrived"]
    if slo["share_inside"] is None:
        raise InputError(f"at {rate:g} requests/s none comes in time; the objectives may be out of reach, or raise "
                         "arrivals.duration_s")  # fmt: skip
    if arrived > MAX_REQUESTS:
        raise InputError(f"even {rate:g} requests/s keep the objectives; they limit nothing")
    return slo["share_inside"], slo["goodput_requests_per_s"]
