"""A run with speculation: what is modelled with drafts, their cost, and what became of them."""

from typing import Any

from testbed.core.errors import InputError
from testbed.core.model_files import model_names
from testbed.core.shapes import read_model
from testbed.core.specs import ModelSpec, ServerSpec
from testbed.cost.model import CostModel
from testbed.memory.served import Drafts
from testbed.run.config import RunConfig
from testbed.run.constructor_parameters import parameters_of
from testbed.run.oracles import is_oracle
from testbed.sched.scheduler import Scheduler
from testbed.speculation.speculation import Speculation
from testbed.vllm.releases import release_numbered

SPECULATION = "speculation"  # of a summary: what became of the drafts


def drafts_of_policy(speculation: Speculation | None) -> Drafts:
    """The facts of drafts that a memory policy needs."""
    if speculation is None:
        return Drafts.NONE
    return Drafts.OF_HIDDEN_STATES if speculation.drops_last_block else Drafts.OF_TOKENS


def drafts_of(scheduler: Scheduler) -> dict[str, Any]:
    """The rows of drafts in a summary; nothing of a run without any."""
    if scheduler.drafting is None:
        return {}
    return {SPECULATION: scheduler.drafting.counts.summary}


def speculative_cost(
    cost: CostModel, speculation: Speculation, model: ModelSpec, server: ServerSpec
) -> CostModel:
    """The cost of iterations with drafts."""
    from testbed.cost.speculative import SpeculativeCost  # few runs have drafts

    drafter = speculation.draft_cost(model, server)
    return SpeculativeCost(cost, drafter, speculation.max_drafts, speculation.off_above)


def capping_drafter(config: RunConfig) -> str | None:
    """The name of a whole model that drafts and whose positions are those of the longest sequence:
    in a release that caps it so, beside a model that is not known to have no more.
    """
    if config.speculation is None or not release_numbered(config.release).caps_by_drafter:
        return None
    speculation: Speculation = config.speculation.make("speculation")
    drafter = speculation.drafter(config.model) if speculation.num_inserted else None
    if drafter is None or drafter.max_len > config.model.max_len:
        return None
    name = config.model.name
    is_own = name in model_names() and read_model(name).max_len <= drafter.max_len
    return None if is_own else drafter.name


def check_speculation(config: RunConfig, speculation: Speculation) -> None:
    """Refuse what is not modelled with drafts."""
    _check_run(config)
    if "drafter" not in parameters_of(config.scheduler.maker("scheduler")).hints:
        raise InputError(
            key="speculation",
            problem=f"scheduler={config.scheduler.name.rpartition('.')[2]} plans no drafts",
            remedy="scheduler=vllm_v1 or scheduler=vllm_v1_async, or leave speculation out",
        )
    _check_policy(config, speculation)
    if speculation.num_inserted:
        _check_whole_drafter(config, speculation)


def _check_whole_drafter(config: RunConfig, speculation: Speculation) -> None:
    """Refuse a whole model that drafts other tokens than the model's."""
    from testbed.speculation.draft_model import check_vocabulary  # few runs have drafts

    drafter = speculation.drafter(config.model)
    if drafter is not None:
        check_vocabulary(drafter, config.model)


def _check_policy(config: RunConfig, speculation: Speculation) -> None:
    """Refuse a policy that finds more of a prefix than the drafter has."""
    release = release_numbered(config.release)
    if config.policy.is_instance or not (
        release.admits_with_drafts or speculation.drops_last_block
    ):
        return
    target = config.policy.maker("policy")
    finds_prefixes = hasattr(target, "lookup")
    if finds_prefixes and "drafts" not in parameters_of(target).hints:
        raise InputError(
            key="speculation",
            problem=(
                f"what {type(speculation).__name__} needs of the cache of prefixes, "
                f"{config.policy.name} does not do"
            ),
            remedy="policy=prefix_caching_v1, or policy=paged",
        )


def _check_run(config: RunConfig) -> None:
    if config.replicas is not None:
        raise InputError(
            key="replicas",
            value=config.replicas,
            problem="engines behind a router with drafts are not modelled",
            remedy="leave replicas or speculation out",
        )
    if is_oracle(config.policy.maker("policy")):
        raise InputError(
            key="speculation",
            problem=(
                f"policy={config.policy.name.rpartition('.')[2]} reserves slots for the true "
                "output length, and none for drafts behind it"
            ),
            remedy="choose another policy",
        )
    if config.server.tiers:
        raise InputError(
            key="server.tiers",
            problem="prefixes below the GPUs with drafts are not modelled",
            remedy="leave the tiers or speculation out",
        )
    if config.model.window is not None or config.model.states is not None:
        raise InputError(
            key="speculation",
            problem=(
                f"{config.model.name} has windows or states, and drafts that are rejected there "
                "are not modelled"
            ),
            remedy="choose a model of full attention",
        )
