"""On a GPU: drafts change no token, and the passes of a drafter go by kernels and graphs too."""

from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import tiny_models as tiny  # noqa: E402

from testbed.core.specs import ModelSpec  # noqa: E402
from testbed.engine.wall_clock import StepClock  # noqa: E402
from testbed.kernels.engine.architecture import Architecture  # noqa: E402
from testbed.kernels.engine.models import Model  # noqa: E402
from testbed.kernels.engine.random_weights import random_weights  # noqa: E402
from testbed.kernels.engine.served_run import Options, assemble  # noqa: E402
from testbed.memory.paged.paged import Paged  # noqa: E402
from testbed.memory.prefix_cache.prefix_caching import PrefixCaching  # noqa: E402
from testbed.sched.preemption import Recompute  # noqa: E402
from testbed.sched.vllm_v1 import VllmV1  # noqa: E402
from testbed.speculation.draft_model import DraftModel  # noqa: E402
from testbed.speculation.ngram import NGram  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
LENGTHS = [(70, 6), (30, 19), (7, 20), (50, 15), (3, 30), (40, 12)]
LIMITS = {
    "max_num_seqs": 8,
    "max_num_batched_tokens": 48,
    "long_prefill_token_threshold": 0,
    "scheduler_reserve_full_isl": True,
}
WIDE = ModelSpec("llama", 4, 512, 8, 2, 64, 1024, 3, 1000, 512)


def outputs_of(arch, weights, policy, speculation=None, **options):
    """The outputs, and the counts of the drafts."""
    made, pool = policy(tiny.pool(1024)), tiny.pool(1024)
    if speculation is None:
        scheduler = VllmV1(made, Recompute(), **LIMITS)
    else:
        drafting = {"drafter": speculation, "max_len": 128}
        scheduler = VllmV1(made, Recompute(), **LIMITS, **drafting)
    drafter = Model(arch, weights) if isinstance(speculation, DraftModel) else None
    chosen = Options(clock=StepClock(), drafter=drafter, **options)
    engine = assemble(scheduler, pool, arch, weights, chosen)
    outputs = engine.serve(tiny.requests(LENGTHS)).outputs
    counts = None if speculation is None else scheduler.drafting.counts
    return [outputs[i][0] for i in sorted(outputs)], counts


def speculations(spec):
    return NGram(3, lookup_min=1, lookup_max=3), DraftModel(3, spec)


@pytest.mark.parametrize("policy", [Paged, partial(PrefixCaching, block_size=4)])
@pytest.mark.parametrize("family", ["opt", "llama", "qwen2"])
def test_tiny_models_in_float32_say_the_same_tokens(family, policy):
    arch = tiny.architecture(family)
    weights = random_weights(arch, 0, "cuda", torch.float32)
    plain, _ = outputs_of(arch, weights, policy)
    for speculation in speculations(arch.spec):
        outputs, counts = outputs_of(arch, weights, policy, speculation, debug=True)
        assert outputs == plain
        assert counts.accepted > 0


@pytest.mark.parametrize("graphs", [0, 8])
def test_kernels_say_about_the_same_tokens(graphs):
    """In fp16 a product of another size may round in another way, which changes few outputs."""
    arch = Architecture(WIDE, "llama")
    weights = random_weights(arch, 0, "cuda", torch.float16)
    options = {"graphs": graphs, "prompt_graphs": 8 * graphs}
    plain, _ = outputs_of(arch, weights, Paged)
    for speculation in speculations(WIDE):
        outputs, counts = outputs_of(arch, weights, Paged, speculation, **options)
        same = sum(a == b for a, b in zip(plain, outputs, strict=True))
        assert same >= len(LENGTHS) - 1
    assert counts.accepted > 0.8 * counts.drafted
