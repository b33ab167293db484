"""Times of a system's software: what an iteration takes besides the kernels."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import doc

from testbed.core.request import PS
from testbed.core.units import NonNegative, Seconds
from testbed.cost.model import Work


@dataclass(frozen=True, slots=True)
class SoftwareTimes:
    """Times that a system's software adds to the kernels, which every cost model charges.

    A time of null is the measured one, or zero if none was measured.
    """

    name: Annotated[
        str | None, doc("the system; null: the times are the profile's, or your own")
    ] = None
    overhead_s: Annotated[
        Seconds | None, doc("of an iteration; null: the minimum that the profile measured")
    ] = None
    overhead_per_worker_s: Annotated[
        Seconds, doc("of an iteration, for each GPU, whose worker gets its input in turn")
    ] = 0.0
    overhead_per_request_s: Annotated[
        Seconds | None, doc("more for each running request; null: the profile's")
    ] = None
    overhead_per_token_s: Annotated[
        Seconds | None, doc("more for each scheduled token; null: the profile's")
    ] = None
    overhead_per_sequence_s: Annotated[
        Seconds, doc("more for each sequence that takes a step or is prefilled")
    ] = 0.0
    overhead_per_input_s: Annotated[
        Seconds, doc("more for each running request and GPU, to hand its input on")
    ] = 0.0
    sequences_per_fork: Annotated[
        NonNegative, doc("a fork takes as long as this many sequences")
    ] = 0.0
    extra_s: Annotated[
        Mapping[str, Seconds], doc("of each event that a policy counts, by its name")
    ] = field(default_factory=dict)


OF_PROFILE = SoftwareTimes()  # the times that the profile has; none with a roofline
KERNELS_ALONE = SoftwareTimes(overhead_s=0.0)


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


def charged(times: SoftwareTimes, num_gpus: int, measured_ps: Mapping[str, int]) -> Charged:
    """Software times that iterations on num_gpus GPUs are charged.

    measured_ps: picoseconds of an "iteration", a "request" and a "token".
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
    workers_ps = num_gpus * round(times.overhead_per_worker_s * PS)
    inputs_ps = num_gpus * round(times.overhead_per_input_s * PS)
    return Charged(
        iteration_ps=ps["iteration"] + workers_ps,
        request_ps=ps["request"] + inputs_ps,
        token_ps=ps["token"],
        sequence_ps=round(times.overhead_per_sequence_s * PS),
        fork_ps=round(times.sequences_per_fork * times.overhead_per_sequence_s * PS),
    )
