"""Arguments of the constructors of a run's parts besides their configured parameters: the release
of vLLM, the drafter and the true lengths of an oracle; of a policy the batching of its scheduler.
"""

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from testbed.core.errors import InputError
from testbed.core.oracle_protocols import LENGTHS, OutputLengths
from testbed.memory.served import Batching, StateCaching
from testbed.run.config import RunConfig
from testbed.run.constructor_parameters import parameters_of
from testbed.run.speculating import drafts_of_policy
from testbed.sched.scheduler import Scheduler
from testbed.speculation.speculation import Speculation
from testbed.vllm.releases import release_numbered

LIMIT = "max_num_batched_tokens"
RELEASED = ("policy", "scheduler")  # the parts that may follow a release


def served_parameters(
    config: RunConfig, group: str, lengths: OutputLengths, speculation: Speculation | None = None
) -> Mapping[str, Any]:
    """The parameters of this kind that the constructor of a part has, and neither the config nor a
    partial function gives.

    lengths: of which an oracle gets a view. speculation: of the config, as an object.
    """
    part = getattr(config, group)
    if part.is_instance:
        return {}
    makers: dict[str, Callable[[RunConfig], Any]] = {
        "release": lambda config: release_numbered(config.release),
        "batching": batching_of,
        "states": states_of,
        "drafts": lambda config: drafts_of_policy(speculation),
        "drafter": lambda config: speculation,
        "max_len": lambda config: config.model.max_len,
        LENGTHS: lambda config: MappingProxyType(lengths),
    }
    maker = part.maker(group)
    declared = parameters_of(maker).hints
    given = part.parameters.keys() - {LENGTHS}  # which no config says
    given |= getattr(maker, "keywords", {}).keys()
    names = [name for name in makers if name in declared and name not in given]
    return {name: makers[name](config) for name in names}


def batching_of(config: RunConfig) -> Batching | None:
    """The iterations of the configured scheduler; None: their tokens have no limit."""
    limit = config.scheduler.parameters.get(LIMIT)
    return Batching(limit, scheduler_class(config).plans_ahead) if isinstance(limit, int) else None


def scheduler_class(config: RunConfig) -> type[Scheduler]:
    """The class of the configured scheduler; the base class of one that a function makes."""
    maker = config.scheduler.maker("scheduler")
    is_class = inspect.isclass(maker)
    kind: type[Scheduler] = maker if is_class else Scheduler
    return kind


def states_of(config: RunConfig) -> StateCaching | None:
    """The caching of the configured model's states; None: behind each block, or there are
    none.
    """
    release, model = release_numbered(config.release), config.model
    cuts = scheduler_class(config).cuts_chunks
    if not cuts or model.states is None or model.states.state_bytes == 0:
        return None
    from testbed.vllm.attention_backends import checkpoint_alignment, keeps_each_state

    if keeps_each_state(model, release):
        return None
    return StateCaching(checkpoint_alignment(model, config.server.gpu, release))


def check_release_is_read(config: RunConfig, release: str) -> None:
    """Raise InputError for a release that no part of the config follows."""
    if not any("release" in served_parameters(config, group, {}) for group in RELEASED):
        raise InputError(
            key="release",
            value=release,
            problem="nothing reads it",
            remedy=(
                "choose +system=vllm-v1, scheduler=vllm_v1, policy=prefix_caching_v1 or "
                "grouped_caching_v1, or leave it out"
            ),
        )
