"""The drafter of an engine, for the speculation of its scheduler; what the engine does not
speculate by is refused.
"""

from testbed.build import Setup
from testbed.core.errors import InputError
from testbed.kernels.engine.drafters import Drafter, NGramDrafter
from testbed.kernels.engine.ragged import TokenBuffers
from testbed.sched.scheduler import Scheduler
from testbed.sched.speculating_v1 import SpeculatingV1
from testbed.speculation.ngram import NGram
from testbed.speculation.speculation import Speculation


def make_drafter(scheduler: Scheduler, token_buffers: TokenBuffers) -> Drafter:
    """Who drafts for this scheduler."""
    speculation = speculation_of(scheduler)
    if isinstance(speculation, NGram):
        sizes = speculation.lookup_min, speculation.lookup_max
        return NGramDrafter(token_buffers, *sizes, speculation.max_drafts)
    return Drafter()


def speculation_of(scheduler: Scheduler) -> Speculation | None:
    """The speculation of a scheduler that plans drafts."""
    return scheduler.speculation if isinstance(scheduler, SpeculatingV1) else None


def check_speculation(setup: Setup) -> None:
    """Raise InputError for speculation that the engine does not carry out."""
    scheduler, speculation = setup.scheduler, speculation_of(setup.scheduler)
    if speculation is None:
        return
    name = type(speculation).__name__
    if type(speculation) is not NGram:
        raise InputError(
            f"speculation: {name} has no weights that the engine could draft by "
            f"(speculation=ngram, or simulate)"
        )
    if scheduler.plans_ahead:
        raise InputError(
            "speculation: the engine knows the drafts of an iteration when the one before is over, "
            "so that it plans none ahead (scheduler=vllm_v1)"
        )
    if setup.config.server.num_gpus > 1:
        raise InputError(
            f"server.num_gpus={setup.config.server.num_gpus}: the engine drafts on one GPU "
            f"(server.num_gpus=1, or leave speculation out)"
        )
    if isinstance(speculation, NGram) and speculation.found_share != 1:
        raise InputError(
            f"speculation.found_share={speculation.found_share:g}: the engine looks for drafts in "
            f"the tokens themselves (leave found_share out)"
        )
