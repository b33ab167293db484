"""The client of `vllm bench serve` and `sglang.bench_serving`: it sends requests at a rate, and may
limit how many are unanswered.
"""

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import PS, Rows, Workload
from testbed.core.units import LAST_S, Positive, PositiveCount, RequestsPerSecond
from testbed.engine.arrivals import AnswerDriven, BoundedWorkload, positive


class Benchmark(AnswerDriven):
    """Sends num_requests requests at `rate` a second, and has at most max_in_flight of them
    unanswered (None: no bound). These are --num-prompts, --request-rate and --max-concurrency of
    both benchmarks.

    The gaps between requests have a gamma distribution; `burstiness` is its squared coefficient of
    variation (1: Poisson arrivals; `vllm bench serve --burstiness` is the inverse). ends_on_time:
    the times are scaled so that the last one is num_requests / rate, as `vllm bench serve` does;
    False: as drawn from the first request on, which is sent at 0, as
    `sglang.bench_serving` does. A request arrives
    when it is sent, so that no latency includes its wait at the client, as in those benchmarks.
    """

    def __init__(
        self,
        rate: RequestsPerSecond,
        num_requests: PositiveCount = 1000,
        max_in_flight: PositiveCount | None = None,
        burstiness: Positive = 1.0,
        ends_on_time: bool = True,
    ) -> None:
        positive(rate=rate, num_requests=num_requests, burstiness=burstiness)
        if max_in_flight is not None:
            positive(max_in_flight=max_in_flight)
        self.rate = rate
        self.num_requests = num_requests
        self.max_in_flight = max_in_flight
        self.burstiness = burstiness
        self.ends_on_time = ends_on_time

    def workload(self, rows: Rows, num_seqs: int, beam: bool, seed: int) -> Workload:
        """All rows, in their order.

        Raises:
            InputError: rows wait for the answers of others, or the last one comes after LAST_S.
        """
        self.check_no_turns(rows)
        rng, shape = np.random.default_rng([seed, 1]), 1 / self.burstiness
        seconds = np.cumsum(rng.gamma(shape, 1 / (self.rate * shape), size=len(rows)))
        if not self.ends_on_time:
            seconds -= seconds[0]
        elif seconds[-1] > 0:
            seconds *= len(rows) / self.rate / seconds[-1]
        if seconds[-1] > LAST_S:
            raise InputError(
                key="arrivals.rate",
                value=self.rate,
                problem=(
                    f"the last of {len(rows)} requests comes after {seconds[-1]:,.6g} s, and time "
                    f"ends at {LAST_S:,.0f} s"
                ),
                remedy="give a higher rate",
            )
        times_ps = np.rint(seconds * PS).astype(np.int64)
        if self.max_in_flight is None:
            return Workload(rows, times_ps, num_seqs, beam)
        return BoundedWorkload(rows, times_ps, num_seqs, beam, self.max_in_flight)
