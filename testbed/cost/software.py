"""Times of a system's software: what an iteration takes besides the kernels."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from testbed.core.request import PS
from testbed.cost.model import Work


class SoftwareOptions(Protocol):
    """Options with software times (s); None is the measured time. `sections.Choices` says of what
    they are.
    """

    @property
    def overhead_s(self) -> float | None: ...
    @property
    def overhead_per_request_s(self) -> float | None: ...
    @property
    def overhead_per_token_s(self) -> float | None: ...
    @property
    def overhead_per_input_s(self) -> float: ...
    @property
    def overhead_per_sequence_s(self) -> float: ...
    @property
    def sequences_per_fork(self) -> float: ...


@dataclass(frozen=True, slots=True)
class SoftwareTimes:
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


def software_times(
    options: SoftwareOptions, num_gpus: int, measured_ps: Mapping[str, int], worker_s: float = 0.0
) -> SoftwareTimes:
    """A time that the options give overrides the measured one; if neither is there it is zero.

    measured_ps: picoseconds of an "iteration", a "request" and a "token". worker_s: seconds of each
    GPU's worker in an iteration.
    """

    def ps(name: str, configured_s: float | None) -> int:
        return measured_ps.get(name, 0) if configured_s is None else round(configured_s * PS)

    workers_ps = num_gpus * round(worker_s * PS)
    inputs_ps = num_gpus * round(options.overhead_per_input_s * PS)
    return SoftwareTimes(
        iteration_ps=ps("iteration", options.overhead_s) + workers_ps,
        request_ps=ps("request", options.overhead_per_request_s) + inputs_ps,
        token_ps=ps("token", options.overhead_per_token_s),
        sequence_ps=round(options.overhead_per_sequence_s * PS),
        fork_ps=round(options.sequences_per_fork * options.overhead_per_sequence_s * PS),
    )
