"""A metric of a log beside that of its simulation."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class MetricError:
    """A metric of a log and of its simulation.

    Attributes:
        log: the log's path
        metric: such as `ttft_s_mean`
        real: measured
        simulated: simulated
        error_percent: of the simulation, in percent of the real value; null if that is 0
    """

    log: str
    metric: str
    real: float
    simulated: float
    error_percent: float = field(init=False)

    def __post_init__(self) -> None:
        if self.real:
            error = 100 * (self.simulated / self.real - 1)
        else:
            error = 0.0 if self.simulated == 0 else float("inf")
        object.__setattr__(self, "error_percent", error)
