"""Software time: of an iteration, of each resident request in it, of each scheduled token, sequence and fork."""

from collections.abc import Mapping
from typing import Any

from testbed.core.request import PS
from testbed.cost.choices import Choices
from testbed.cost.model import Work
from testbed.cost.sections import has, rows


class Software:
    """What is told counts; what is not is the profile's, and nothing where the profile has none."""

    def __init__(self, profile: Mapping[str, Any], choices: Choices, num_gpus: int) -> None:
        known = {key[0]: ps for key, ps in rows(profile, "overhead")} if has(profile, "overhead") else {}

        def ps(what: str, told_s: float | None) -> int:
            return known.get(what, 0) if told_s is None else round(told_s * PS)

        workers_ps = num_gpus * round(choices.overhead_per_worker_s * PS)
        self.iteration_ps = ps("iteration", choices.overhead_s) + workers_ps
        inputs_ps = num_gpus * round(choices.overhead_per_input_s * PS)
        self.request_ps = ps("request", choices.overhead_per_request_s) + inputs_ps
        self.token_ps = ps("token", choices.overhead_per_token_s)
        self.sequence_ps = round(choices.overhead_per_sequence_s * PS)
        self.fork_ps = round(choices.sequences_per_fork * choices.overhead_per_sequence_s * PS)

    def running(self, num_tokens: int) -> int:
        """Picoseconds of an iteration over so many tokens, whoever they belong to; swaps hide behind it."""
        return self.iteration_ps + num_tokens * self.token_ps if num_tokens else 0

    def serving(self, work: Work) -> int:
        """Picoseconds more for its requests, their sequences and forks."""
        num_seqs = work.decode_seqs + len(work.prefill)
        return work.num_requests * self.request_ps + num_seqs * self.sequence_ps + work.forks * self.fork_ps
