"""Refuses speculation that the engine does not have. No torch is needed."""

from testbed.core.errors import InputError
from testbed.core.specs import ModelSpec
from testbed.run.build import Setup
from testbed.run.config import EngineConfig
from testbed.speculation.draft_model import DraftModel
from testbed.speculation.ngram import NGram


def check_speculation(setup: Setup) -> None:
    """Raise InputError for speculation that the engine does not carry out."""
    scheduler, speculation = setup.scheduler, setup.scheduler.drafter
    folder = (setup.config.engine or EngineConfig()).draft_weights
    if folder != EngineConfig().draft_weights and not isinstance(speculation, DraftModel):
        raise InputError(
            f"engine.draft_weights={folder}: no model drafts (speculation=draft_model, or leave "
            f"draft_weights out)"
        )
    if speculation is None:
        return
    name = type(speculation).__name__
    if not isinstance(speculation, NGram | DraftModel):
        raise InputError(
            f"speculation: {name} has no weights that the engine could draft by "
            f"(speculation=ngram or draft_model, or simulate)"
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
    if isinstance(speculation, DraftModel):
        _check_drafter(speculation, setup.model)


def _check_drafter(speculation: DraftModel, model: ModelSpec) -> None:
    """Raise InputError for a drafter that does not speak for the model."""
    drafter = speculation.drafter(model)
    if drafter.vocab_size != model.vocab_size:
        raise InputError(
            f"speculation.drafter={drafter.name}: has {drafter.vocab_size} tokens, and "
            f"{model.name} has {model.vocab_size} (give a drafter with the same vocabulary)"
        )
    if drafter.max_len < model.max_len:
        raise InputError(
            f"speculation.drafter={drafter.name}: serves up to {drafter.max_len} tokens, and "
            f"model.max_len is {model.max_len} (set model.max_len={drafter.max_len})"
        )
    if not speculation.takes_memory:
        raise InputError(
            "speculation.takes_memory=false: a model that drafts on the engine takes memory (leave "
            "takes_memory out)"
        )
