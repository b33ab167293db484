"""The drafter of an engine, for the speculation of its scheduler."""

from dataclasses import replace

from testbed.kernels.engine.drafters import Drafter, NGramDrafter
from testbed.kernels.engine.gpu_draft_model import ModelDrafter
from testbed.kernels.engine.layout import layout_of
from testbed.kernels.engine.models import Model, architecture, weights_of
from testbed.kernels.engine.on_device import on_device
from testbed.kernels.engine.pool_moves import live_tables
from testbed.kernels.engine.runner import Runner
from testbed.memory.policy import PoolSpec
from testbed.run.build import Setup
from testbed.run.config import EngineConfig
from testbed.sched.scheduler import Scheduler
from testbed.speculation.draft_model import DraftModel
from testbed.speculation.ngram import NGram


def make_drafter(
    scheduler: Scheduler, runner: Runner, pool: PoolSpec, model: Model | None
) -> Drafter:
    """The drafter of this scheduler; model: of a drafter that is one."""
    speculation, buffers = scheduler.drafter, runner.token_buffers
    if isinstance(speculation, NGram):
        sizes = speculation.lookup_min, speculation.lookup_max
        return NGramDrafter(buffers, *sizes, speculation.max_drafts)
    if model is None:
        return Drafter()
    layout = layout_of(scheduler.memory, model.arch.spec.num_kv_heads, model.arch.windows)
    own, live = replace(pool, tiers=()), live_tables(scheduler.state)
    device = on_device(model.arch, model.weights, own, layout, live)
    return ModelDrafter(device, buffers, runner.tables, runner.timer)


def drafting_model(setup: Setup, options: EngineConfig) -> Model | None:
    """The model that drafts in this setup, on the device; None if none does."""
    speculation = setup.scheduler.drafter
    if not isinstance(speculation, DraftModel):
        return None
    folder, spec = options.draft_weights, speculation.drafter(setup.model)
    arch = architecture(folder, spec, "speculation.drafter")
    return Model(arch, weights_of(arch, folder, setup.config.seed, options))
