"""Times of a system's software: what an iteration takes besides the kernels."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from testbed.core.request import PS
from testbed.core.units import NonNegative, Seconds
from testbed.cost.model import Work


@dataclass(frozen=True, slots=True)
class SoftwareTimes:
    """Times that a system's software adds to the kernels, in seconds.

    overhead_s: an iteration (one graph launch, inputs in, tokens out). More for each running
    request, scheduled token, sequence that takes a step or is prefilled, and for each running
    request on each GPU, to hand its input on. sequences_per_fork: a fork takes as long as this
    number of sequences. software: the system whose times these are, None if they are the profile's
    or the user's own. A time of None is the measured one, or zero if none was measured.
    """

    overhead_s: Seconds | None = None
    overhead_per_request_s: Seconds | None = None
    overhead_per_token_s: Seconds | None = None
    overhead_per_sequence_s: Seconds = 0.0
    overhead_per_input_s: Seconds = 0.0
    sequences_per_fork: NonNegative = 0.0
    software: str | None = None


SOFTWARE = tuple(field.name for field in fields(SoftwareTimes))


@dataclass(frozen=True, slots=True)
class Charged:
    """Picoseconds of an iteration, and more for each of its running requests, scheduled tokens,
    sequences that take a step, and forks.
    """

    iteration_ps: int
    request_ps: int
    token_ps: int
    sequence_ps: int
    fork_ps: int

    def running(self, num_tokens: int) -> int:
        """Picoseconds of an iteration over num_tokens tokens, for any number of sequences."""
        return self.iteration_ps + num_tokens * self.token_ps if num_tokens else 0

    def serving(self, work: Work) -> int:
        """Picoseconds more for its requests, their sequences and forks."""
        num_seqs = work.decode_seqs + len(work.prefill)
        return (
            work.num_requests * self.request_ps
            + num_seqs * self.sequence_ps
            + work.forks * self.fork_ps
        )


def charged(
    times: SoftwareTimes, num_gpus: int, measured_ps: Mapping[str, int], worker_s: float = 0.0
) -> Charged:
    """Software times that iterations on num_gpus GPUs are charged.

    measured_ps: picoseconds of an "iteration", a "request" and a "token". worker_s: seconds of each
    GPU's worker in an iteration.
    """

    configured = {
        "iteration": times.overhead_s,
        "request": times.overhead_per_request_s,
        "token": times.overhead_per_token_s,
    }
    ps = {
        name: measured_ps.get(name, 0) if time_s is None else round(time_s * PS)
        for name, time_s in configured.items()
    }
    workers_ps = num_gpus * round(worker_s * PS)
    inputs_ps = num_gpus * round(times.overhead_per_input_s * PS)
    return Charged(
        iteration_ps=ps["iteration"] + workers_ps,
        request_ps=ps["request"] + inputs_ps,
        token_ps=ps["token"],
        sequence_ps=round(times.overhead_per_sequence_s * PS),
        fork_ps=round(times.sequences_per_fork * times.overhead_per_sequence_s * PS),
    )
