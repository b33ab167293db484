"""Whether a server kept up with its arrivals: a queue that grows says no, however good the latencies of a short run."""

from collections.abc import Mapping
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

SERVED, OFFERED = "served_requests_per_s", "offered_requests_per_s"
KEPT_UP = 0.9  # a smaller share of the arrivals that begin is an overload, unless within the noise of few requests


def overload(arrival_s: NDArray[np.float64], first_token_s: NDArray[np.float64]) -> dict[str, float] | None:
    """Rates (req/s) of first tokens and of arrivals in the second half of the time in which requests arrive.

    first_token_s: NaN for a request without one. None: the server kept up, or the requests are too few to judge by.
    """
    last = float(arrival_s.max()) if len(arrival_s) else 0.0
    offered = int((arrival_s > last / 2).sum())
    served = int(((first_token_s > last / 2) & (first_token_s <= last)).sum())
    if not last or served >= KEPT_UP * offered or offered - served <= 3 * sqrt(offered):
        return None
    return {SERVED: served / (last / 2), OFFERED: offered / (last / 2)}


def in_words(found: Mapping[str, Any]) -> str:
    """Such as "0.59 of 1 req/s served in the second half of the arrivals; the queue grows"."""
    rates = f"{found[SERVED]:.2g} of {found[OFFERED]:.2g} req/s served"
    return f"{rates} in the second half of the arrivals; the queue grows"
