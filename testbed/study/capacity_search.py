"""The search for the highest rate of requests that keeps objectives, one run for each rate."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.core.errors import InputError
from testbed.run.config import RunConfig, plain_values
from testbed.run.metrics import OFFERED, SERVED, WHILE_ARRIVING, in_words
from testbed.run.override_words import key_of
from testbed.run.result import front_end
from testbed.run.simulate import FILLING, OVERLOAD, run
from testbed.run.summaries import HANDOVERS, RUN, about, costs_of, origin_of, remedy_for_rejections
from testbed.run.while_arriving import ARRIVED, COMPLETED
from testbed.study.knee import NoRate, NotSustained, highest_rate
from testbed.study.replications import Interval, interval, within_step
from testbed.study.too_long import too_long

if TYPE_CHECKING:
    import pandas as pd

SHARE, PRECISION = 0.9, 0.02
LOW, HIGH = 0.5, 2.0  # requests/s, a first guess
RATE, DURATION = "arrivals.rate", "arrivals.duration_s"
HOUR_S, USUAL_S = 3600, 300  # of arrivals: of one run, and of each rate of a search
MAX_REQUESTS = 3_000_000
WITH_WAIT = "ttft_s", "e2e_s"  # objectives that a long queue misses
FAR_BEYOND = 2  # times the requests that are served: more of them only wait
Seen = Callable[[float, float], None]


@dataclass(frozen=True)
class Capacity:
    """The highest rate that one seed found; 1 + precision times this rate misses the SLO.

    Attributes:
        rate: the highest simulated rate (requests/s) that meets the SLO.
        share: the share of the requests that must meet it, above 0 and at most 1.
        points: (rate, share inside, goodput in requests/s) of every simulated rate.
        costs: the source of the runs' costs and their tested error; empty on a GPU.
        future_read: what the runs read of the future, as no real server can; empty if they read
            nothing.
        overload: in words, that the server did not keep up with the arrivals of the run at `rate`;
            empty if it did.
        precision: of the search.
        about: the model, its GPUs and the workload.
        origin: the measurements that the costs rest on, and the way from them.
        completed: requests/s that completed in the second half of the arrivals at `rate`; None if
            all arrive at once.
        arrived: requests/s that arrived then; None likewise.
        filling: the share of the arrivals at `rate` in which the server, empty at first, filled: a
            longer run finds a rate that is lower by about this share; it may be more.
        handovers: the times of hand-overs at `rate` (s) and the bytes/s of their link, with prefill
            apart; empty without.
        too_long: the share of the requests that are longer than the server takes: it rejects them
            at any rate, and they are outside the SLO.
    """

    rate: float
    share: float
    points: tuple[tuple[float, float, float], ...]
    costs: str = ""
    future_read: str = ""
    overload: str = ""
    precision: float = 0.0
    filling: float = 0.0
    completed: float | None = None
    arrived: float | None = None
    origin: str = ""
    about: str = ""
    handovers: Mapping[str, float] = field(default_factory=dict)
    too_long: float = 0.0

    @property
    def table(self) -> "pd.DataFrame":
        """The simulated points, in order of rate."""
        import pandas as pd

        return pd.DataFrame(
            self.points, columns=["rate_requests_per_s", "share_inside", "goodput_requests_per_s"]
        )


@dataclass(frozen=True)
class Capacities:
    """The capacity with each seed, in requests/s.

    Attributes:
        of_seed: what each seed found, by seed.
    """

    of_seed: Mapping[int, Capacity]

    @property
    def rate(self) -> Interval:
        """The mean over the seeds, with its 95% interval and the step of the search: no seed's rate
        is known better than to a factor of 1 + precision.
        """
        rates = [capacity.rate for capacity in self.of_seed.values()]
        return within_step(interval(rates), self.step)

    @property
    def step(self) -> float:
        """The largest step between the rate that a seed found and the next one that missed."""
        return max(found.precision * found.rate for found in self.of_seed.values())

    @property
    def filling(self) -> float:
        """The largest share of the arrivals in which the server filled, over the seeds."""
        return max(found.filling for found in self.of_seed.values())


class CapacitySearch:
    """The runs of one search. Raises InputError for options with a rate or without an objective.

    overrides, options: of every run, as in `testbed.simulate`; folder: that of run folders,
    None for none; seen: called as seen(rate, share_inside) after every run. summaries: those of
    the runs so far, by rate.
    """

    def __init__(
        self,
        overrides: Sequence[str],
        options: Mapping[str, Any],
        folder: str | Path | None = None,
        seen: Seen | None = None,
    ) -> None:
        check_searched(overrides, options)
        self._overrides = overrides
        self._options = options
        self._folder = folder
        self._seen = seen
        self.summaries: dict[float, dict[str, Any]] = {}
        self._inside: dict[float, float] = {}
        self._too_long = too_long(self._configured)

    def highest(self, share: float, low: float, high: float, precision: float) -> Capacity:
        """The highest rate at which this share of the requests meets the SLO; see
        `testbed.capacity`. Raises InputError for limits that make no sense.
        """
        check_search(share, low, high, precision)
        self._too_long.check(share)
        front_end().check_possible(front_end().configure(self._overrides, self._options), share)

        def share_inside(rate: float) -> float:
            inside = self._share_inside(rate)
            if inside >= share:
                _check_limits(self.summaries[rate], rate)
            return inside

        highest = highest_rate(share_inside, share, low, high, precision)
        summaries = self.summaries
        window = summaries[highest].get(WHILE_ARRIVING) or {}
        goodputs = {rate: of["slo"]["goodput_requests_per_s"] for rate, of in summaries.items()}
        points = tuple((rate, self._inside[rate], goodputs[rate]) for rate in sorted(summaries))
        return Capacity(
            rate=highest,
            share=share,
            points=points,
            costs=costs_of(summaries[highest]),
            future_read=_futures(summaries),
            overload=_behind(summaries[highest]),
            precision=precision,
            filling=filling_share(summaries[highest], highest),
            completed=window.get(COMPLETED),
            arrived=window.get(ARRIVED),
            origin=origin_of(summaries[highest]),
            about=about(summaries[highest]),
            handovers=summaries[highest].get(HANDOVERS, {}),
            too_long=self._too_long.share,
        )

    def _configured(self, rate: float) -> RunConfig:
        return front_end().configure(self._overrides, {**self._options, "rate": rate})

    def _share_inside(self, rate: float) -> float:
        summary = measured(self._overrides, {**self._options, "rate": rate}, self._folder)
        self.summaries[rate] = summary
        inside = self._too_long.inside(summary, rate)
        if self._seen:
            self._seen(rate, inside or 0.0)
        self._inside[rate] = _checked(inside, summary, rate)
        return self._inside[rate]


def measured(
    overrides: Sequence[str], options: Mapping[str, Any], folder: str | Path | None
) -> dict[str, Any]:
    """The summary of one run, which is kept in the folder, if there is one."""
    if folder is None:
        return run(front_end().configure(overrides, options)).summary
    config = front_end().configure(overrides, {"outputs": "summary", **options})
    return front_end().measure(config, Path(folder))


def given_objectives(**objectives: float | None) -> dict[str, float]:
    """The objectives that are given, as options of a run."""
    return {f"slo.{name}": seconds for name, seconds in objectives.items() if seconds is not None}


def _futures(summaries: Mapping[float, dict[str, Any]]) -> str:
    """Values of the future that the runs read, in words; an empty text for nothing."""
    read = {summary[RUN].get("future_read") for summary in summaries.values()}
    return "; ".join(sorted(filter(None, read)))


def _behind(summary: Mapping[str, Any]) -> str:
    """The remark that the run's server did not keep up; an empty text if it did."""
    return in_words(summary[OVERLOAD]) if summary.get(OVERLOAD) else ""


def filling_share(summary: Mapping[str, Any], rate: float) -> float:
    """The share of the arrivals at this rate in which the server filled; 0 for a GPU's run."""
    arrivals_s = float(summary["requests"]["arrived"] / rate)
    filling_s = float(summary.get(FILLING) or 0.0)
    return min(1.0, filling_s / arrivals_s)


def check_search(share: float, low: float, high: float, precision: float) -> None:
    """Raise InputError for limits of a search that make no sense."""
    if not 0 < share <= 1:
        raise InputError(key="share", value=share, problem="must be above 0 and at most 1")
    if not 0 < low < high:
        raise InputError(
            key="low",
            value=f"{low} high={high}",
            problem="must be rates above 0, the lower one first",
        )
    if not precision > 0:
        raise InputError(key="precision", value=precision, problem="must be above 0")


def check_searched(overrides: Sequence[str], options: Mapping[str, Any]) -> None:
    """Raise InputError for options with a rate, without an objective, or of runs that do not serve
    every request.
    """
    _check_no_rate(overrides, options)
    _check_objectives(front_end().configure(overrides, options))


def usual_duration(overrides: Sequence[str], options: Mapping[str, Any]) -> list[str]:
    """The word for 300 s of arrivals if neither overrides nor options say how long they last: an
    hour of each rate is more than a first answer takes.
    """
    is_object = not isinstance(options.get("arrivals"), str | None)
    given = any(options.get(key) is not None for key in ("duration_s", DURATION))
    if given or is_object or any(key_of(word) == DURATION for word in overrides):
        return []
    parameters = front_end().configure(overrides, options).arrivals.parameters
    return [f"{DURATION}={USUAL_S}"] if parameters.get("duration_s") == HOUR_S else []


def _check_no_rate(overrides: Sequence[str], options: Mapping[str, Any]) -> None:
    """Raise InputError for a rate, which capacity looks for."""
    has_option = any(options.get(key) is not None for key in ("rate", RATE))
    if has_option or any(key_of(word) == RATE for word in overrides):
        raise InputError(
            key=RATE,
            problem="is what capacity looks for",
            remedy="give low and high, the rates to begin with",
        )


def _check_objectives(config: RunConfig) -> None:
    """Raise InputError unless the config has objectives, and its run serves every request."""
    if not config.slo:
        raise InputError(
            key="slo",
            problem="no objective is given",
            remedy="give slo.ttft_s=..., slo.tpot_s=..., slo.itl_s=... or slo.e2e_s=...",
        )
    _check_seconds(config)
    for name in ("stop_at_latency", "window_s"):
        if getattr(config, name) is not None:
            raise InputError(
                key=name,
                value=plain_values(getattr(config, name)),
                problem=(
                    "a run that stops before its end leaves out the slowest requests, which "
                    "capacity counts"
                ),
                remedy="set it to null",
            )
    bound = config.arrivals.parameters.get("max_in_flight")
    if bound is not None:
        raise InputError(
            key="arrivals.max_in_flight",
            value=bound,
            problem=(
                "what waits at its client is in no latency, so no rate would miss the objectives"
            ),
            remedy="set it to null",
        )


def _check_seconds(config: RunConfig) -> None:
    """Raise InputError for an objective longer than the arrivals, as one in milliseconds is: only
    a server that falls far behind misses it.
    """
    duration_s = config.arrivals.parameters.get("duration_s")
    for name, seconds in config.slo.limits.items():
        if duration_s is not None and seconds is not None and seconds > duration_s:
            raise InputError(
                key=f"slo.{name}",
                value=f"{seconds:g}",
                problem=(
                    f"is in seconds, and longer than the {duration_s:g} s of arrivals, so that "
                    f"only what waits beyond their end misses it; did you mean {seconds / 1000:g}?"
                ),
                remedy=f"or raise {DURATION}",
            )


def _checked(inside: float | None, summary: Mapping[str, Any], rate: float) -> float:
    """The share inside. Raises NoRate for a rate at which a run says nothing."""
    if inside is None:
        raise NotSustained(
            key=RATE,
            value=f"{rate:g}",
            problem=(
                "no request that the server takes arrives in that time, and no higher rate that "
                "was tried keeps the objectives"
            ),
            remedy="raise arrivals.duration_s or low, or the objectives",
        )
    requests = summary["requests"]
    if requests["rejected"] == requests["arrived"]:
        raise NotSustained(
            key=RATE,
            value=f"{rate:g}",
            problem="every request is rejected, as longer than the server takes",
            remedy=remedy_for_rejections(summary),
        )
    if requests["arrived"] > MAX_REQUESTS:
        raise NoRate(
            key=RATE, value=f"{rate:g}", problem="keeps the objectives even so; they limit nothing"
        )
    return inside


def _check_limits(summary: Mapping[str, Any], rate: float) -> None:
    """Raise NoRate for a rate beyond what is served that keeps objectives without the wait: no
    higher one would miss them, for what waits does not run.
    """
    overload = summary.get(OVERLOAD) or {}
    served, offered = overload.get(SERVED, 0.0), overload.get(OFFERED, 0.0)
    has_wait = any(summary["slo"][name] is not None for name in WITH_WAIT)
    if offered > FAR_BEYOND * served and not has_wait:
        raise NoRate(
            key=RATE,
            value=f"{rate:g}",
            problem=(
                f"keeps the objectives, though only {served:.3g} req/s are served: they limit "
                "nothing"
            ),
            remedy="give slo.ttft_s or slo.e2e_s too, which have the wait",
        )
