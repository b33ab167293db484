"""The requests to come, as far as a server knows them: their columns, and no row."""

import numpy as np

from testbed.core.errors import InputError
from testbed.core.request import Rows, Workload
from testbed.fleet.fleet_checks import has_oracle
from testbed.run.build import Setup
from testbed.run.config import Slo, WorkloadConfig


def unknown_requests() -> Workload:
    """A workload without rows, whose columns are those of clients' requests: prompts with content,
    and priorities, but no sessions.
    """
    none = np.empty(0, np.int64)
    return Workload(Rows(none, none, prompt_ids=(), priority=none), none)


def check_served(setup: Setup) -> None:
    """Raise InputError for a run that ends, or whose parts read requests to come, and for values
    that requests of a server have by themselves.
    """
    for name in ("window_s", "stop_at_latency"):
        if getattr(setup.config, name) is not None:
            raise InputError(
                key=name, problem="ends a run, and a server does not end", remedy="leave it out"
            )
    for name, unset in (("workload", WorkloadConfig()), ("slo", Slo())):
        if getattr(setup.config, name) != unset:
            problem = "is of a run: what a server gets, its clients say"
            raise InputError(key=name, problem=problem, remedy="leave it out")
    foresees = setup.scheduler.memory.foresees_prompts is not None
    if foresees and has_oracle(setup.config.policy):
        raise InputError(
            key="policy",
            problem=(
                f"{setup.scheduler.memory.name} reads the prompts to come, which a server does not "
                "know"
            ),
            remedy="choose another eviction",
        )


def reads_priorities(setup: Setup) -> bool:
    """True if scheduler or policy read the priority of a request."""
    readers = (setup.scheduler, setup.scheduler.memory.reads_columns)
    return any("priority" in reader.columns_read() for reader in readers if reader is not None)
