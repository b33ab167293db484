"""Software time: of an iteration, of each resident request in it, of each scheduled token."""

from collections.abc import Mapping
from typing import Any

from testbed.core.request import PS
from testbed.cost.choices import Choices
from testbed.cost.sections import has, rows


class Software:
    """What is told counts; what is not is the profile's, and nothing where the profile has none."""

    def __init__(self, profile: Mapping[str, Any], choices: Choices, num_gpus: int) -> None:
        known = {key[0]: ps for key, ps in rows(profile, "overhead")} if has(profile, "overhead") else {}

        def ps(what: str, told_s: float | None) -> int:
            return known.get(what, 0) if told_s is None else round(told_s * PS)

        workers_ps = num_gpus * round(choices.overhead_per_worker_s * PS)
        self.iteration_ps = ps("iteration", choices.overhead_s) + workers_ps
        self.request_ps = ps("request", choices.overhead_per_request_s)
        self.token_ps = ps("token", choices.overhead_per_token_s)
