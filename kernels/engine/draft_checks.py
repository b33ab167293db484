"""Refuses speculation that the engine does not have. No torch is needed."""

from testbed.core.errors import InputError
from testbed.core.specs import ModelSpec
from testbed.run.build import Setup
from testbed.run.config import EngineConfig
from testbed.speculation.draft_model import DraftModel
from testbed.speculation.ngram import NGram


def check_speculation(setup: Setup) -> None:
    """Raise InputError for speculation that the engine does not carry out."""
    speculation = setup.scheduler.drafter
    _check_weights(setup)
    if speculation is None:
        return
    if not isinstance(speculation, NGram | DraftModel):
        raise InputError(
            key="speculation",
            problem=f"{type(speculation).__name__} has no weights that the engine could draft by",
            remedy="speculation=ngram or draft_model, or simulate",
        )
    _check_around(setup)
    if isinstance(speculation, DraftModel):
        _check_drafter(speculation, setup.model)
    elif speculation.found_share != 1:
        raise InputError(
            key="speculation.found_share",
            value=f"{speculation.found_share:g}",
            problem="the engine looks for drafts in the tokens themselves",
            remedy="leave found_share out",
        )


def _check_weights(setup: Setup) -> None:
    """Raise InputError for weights of a drafter without one."""
    folder = (setup.config.engine or EngineConfig()).draft_weights
    if folder != EngineConfig().draft_weights and not isinstance(
        setup.scheduler.drafter, DraftModel
    ):
        raise InputError(
            key="engine.draft_weights",
            value=folder,
            problem="no model drafts",
            remedy="speculation=draft_model, or leave draft_weights out",
        )


def _check_around(setup: Setup) -> None:
    """Raise InputError for a scheduler or a server with which the engine does not draft."""
    if setup.scheduler.plans_ahead:
        raise InputError(
            key="speculation",
            problem=(
                "the engine knows the drafts of an iteration when the one before is over, so that "
                "it plans none ahead"
            ),
            remedy="scheduler=vllm_v1",
        )
    if setup.config.server.num_gpus > 1:
        raise InputError(
            key="server.num_gpus",
            value=setup.config.server.num_gpus,
            problem="the engine drafts on one GPU",
            remedy="server.num_gpus=1, or leave speculation out",
        )


def _check_drafter(speculation: DraftModel, model: ModelSpec) -> None:
    """Raise InputError for a drafter of fewer positions than the model's, or without memory."""
    drafter = speculation.drafter(model)
    if drafter.max_len < model.max_len:
        raise InputError(
            key="speculation.drafter",
            value=drafter.name,
            problem=f"serves up to {drafter.max_len} tokens, and model.max_len is {model.max_len}",
            remedy=f"set model.max_len={drafter.max_len}",
        )
    if not speculation.takes_memory:
        raise InputError(
            key="speculation.takes_memory",
            value="false",
            problem="a model that drafts on the engine takes memory",
            remedy="leave takes_memory out",
        )
