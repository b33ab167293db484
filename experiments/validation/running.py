"""How many requests a server ran over time: a real one's samples and a simulated one's requests."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments.validation.deviations import Compared, Times
from traces.files import read_table
from traces.vllm_log import beside

Series = pd.DataFrame


def real_running(path: str) -> Series | None:
    """The samples beside a log (timeseries.csv): t in seconds, requests running; None where there are none."""
    file = beside(path, "timeseries.csv")
    if file is None:
        return None
    columns = read_table(str(file), ["t", "running"])
    return pd.DataFrame({name: np.array(values, dtype=np.float64) for name, values in columns.items()})


def running_at(times: Times, moments: NDArray[np.float64]) -> NDArray[np.int64]:
    """Requests that had their first token and were not done, at each moment."""
    begun, done = np.sort(times.first_token_s), np.sort(times.finish_s)
    return np.searchsorted(begun, moments, "right") - np.searchsorted(done, moments, "right")


def compare_running(log: str, series: Series, real: Times, simulated: Times) -> list[Compared]:
    """Requests running, on average over the samples; the real ones are counted as the simulated ones are."""
    moments = series["t"].to_numpy()
    means = (float(running_at(times, moments).mean()) for times in (real, simulated))
    return [Compared(log, "running_mean", *means)]
