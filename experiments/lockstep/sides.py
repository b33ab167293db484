"""From a configuration to the two schedulers and the requests that both can serve."""

from collections.abc import Callable, Sequence

from testbed.build import Setup, build
from testbed.core.errors import InputError
from testbed.core.request import Request
from testbed.experiments.lockstep.comparison import Sides
from testbed.experiments.lockstep.ours import Ours
from testbed.experiments.lockstep.release_options import options_of
from testbed.experiments.lockstep.theirs import Theirs
from testbed.front_end import front_end
from testbed.sim.arrivals import SessionWorkload


def sides_of(overrides: Sequence[str], requests: list[Request] | None) -> tuple[Callable[[], Sides], Setup]:
    """What makes a fresh pair of schedulers, ours first, of the words of `testbed run`; and one setup of ours.

    `requests` take the place of the configured trace and arrivals. Raises InputError where vLLM has no such option, or
    is not installed.
    """
    config = front_end().configure(overrides, {} if requests is None else {"trace": requests})
    setup = build(config)
    options = options_of(setup)
    return lambda: (Ours(build(config)), Theirs(options)), setup


def served(setup: Setup) -> tuple[list[Request], int]:
    """The requests that are not turned away on arrival, in order of arrival, and how many are."""
    if isinstance(setup.workload, SessionWorkload):
        raise InputError("arrivals=sessions: iterations are compared on fixed arrivals (another arrivals=)")
    policy, requests = setup.scheduler.policy, list(setup.workload)
    taken = [
        one for one in requests if one.final_len <= min(setup.model.max_len, policy.max_seq_len(one.prompt_len, 1))
    ]
    if not taken:
        raise InputError("the workload: has no request that fits the pool (a larger server.num_blocks)")
    return taken, len(requests) - len(taken)
