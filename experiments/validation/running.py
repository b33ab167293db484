"""How many requests a server ran over time: a real one's samples and a simulated one's requests."""

import numpy as np
from numpy.typing import NDArray

from experiments.validation.deviations import Compared, Times
from traces.files import read_table, seconds
from traces.vllm_log import beside


def sampled_at(path: str) -> NDArray[np.float64] | None:
    """The times in s at which a real server counted its requests (timeseries.csv beside a log); None without them."""
    file = beside(path, "timeseries.csv")
    if file is None:
        return None
    return np.array(seconds(str(file), "t", read_table(str(file), ["t", "running"])["t"]))


def running_at(times: Times, moments: NDArray[np.float64]) -> NDArray[np.int64]:
    """Requests that had their first token and were not done, at each moment."""
    begun, done = np.sort(times.first_token_s), np.sort(times.finish_s)
    return np.searchsorted(begun, moments, "right") - np.searchsorted(done, moments, "right")


def compare_running(log: str, moments: NDArray[np.float64], real: Times, simulated: Times) -> list[Compared]:
    """Requests running, on average over the samples; the real ones are counted as the simulated ones are."""
    means = (float(running_at(times, moments).mean()) for times in (real, simulated))
    return [Compared(log, "running_mean", *means)]
