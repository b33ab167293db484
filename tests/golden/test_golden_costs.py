"""Golden rows of costs: the times of drawn iterations by every way that costs come, measured,
derived and by a roofline. A deliberate change is `pytest --update-golden`.
"""

from dataclasses import replace
from random import Random

import pytest
from charged_times import apart
from digests import digest_of

from testbed.core.shapes import read_model
from testbed.core.slots import DEVICE, HOST
from testbed.core.specs import ServerSpec, TierSpec
from testbed.cost.analytic import Efficiencies
from testbed.cost.auto import auto_cost
from testbed.cost.model import UNBOUNDED, Moved, WindowReads, Work
from testbed.cost.sections import Choices
from testbed.experiments.real.importers.known_shapes import gpu_named

H200 = gpu_named("h200")
TIERS = {"dram": TierSpec(1, 2e9, 1e9, 1e-5)}
TIMES = Efficiencies(copy_s=4e-6, repeated_read=0.3)
CASES = {
    "measured": ("opt-13b", "h200", 1, {}),
    "measured, equal lengths": ("opt-13b", "h200", 1, {"spread": "equal"}),
    "measured, contiguous": ("opt-13b", "h200", 1, {"kernel": "contiguous"}),
    "measured, the paper's kernel": ("opt-13b", "h200", 1, {"kernel": "paper", "block_size": 8}),
    "measured, swaps all in": ("llama-3-8b", "h200", 1, {"swap_waits": "all in"}),
    "measured, software of workers": (
        "llama-3-70b",
        "h200",
        4,
        {"overhead_per_worker_s": 1e-4, "parallel_layer_s": {4: 1e-6}, "attention_scale": 1.2},
    ),
    "another GPU": ("opt-66b", "h100-80gb", 4, {}),
    "another model": ("qwen2.5-14b", "h200", 2, {"overhead_s": 1e-3}),
    "another cache": ("llama-3-8b of bytes", "h200", 1, {}),
    "whole iterations": ("llama-3.1-8b", "h100-80gb", 1, {}, "vllm-0.20"),
    "windows": ("gemma-2-27b", "h200", 1, {}),
    "experts": ("mixtral-8x7b", "h200", 2, {}),
    "latent": ("deepseek-v3", "h200", 8, {}),
    "states": ("qwen3-next-80b-a3b", "h200", 2, {}),
}


def cost_of(name, gpu, num_gpus, values, iterations=None):
    model = read_model(name.removesuffix(" of bytes"))
    if name.endswith("of bytes"):
        model = replace(model, kv_dtype_bytes=1)
    on = ServerSpec("s", gpu_named(gpu), num_gpus, tiers=TIERS)
    choices, software = apart(values)
    return auto_cost(
        model, on, H200, Choices(**choices), TIMES, iterations=iterations, software=software
    )


def reads_of(lens, size):
    """The tokens that sequences of these lengths read in a window."""
    left = [size - n + 1 for n in lens if n < size]
    tokens = sum(min(n, size) for n in lens)
    return WindowReads(size, tokens, len(left), min(left, default=UNBOUNDED))


def drawn_work(random, case, cost):
    """Decodes, prompts or both, in some with copies, swaps and forks beside them."""
    lens = [random.randint(1, 3000) for _ in range(random.choice([0, 1, 5, 40, 300]))]
    prompts = [(random.choice([1, 16, 300, 2048]), random.choice([0, 0, 512])) for _ in range(4)]
    prefill = tuple(prompts[: random.randrange(0 if lens else 1, 4)])
    work = Work(
        len(lens),
        sum(lens),
        max(lens, default=0),
        random.choice([0, sum(lens) // 3]),
        prefill,
        len(lens) + len(prefill),
        windows=tuple(reads_of(lens, size) for size in cost.windows) if lens else (),
    )
    if random.random() < 0.5 or case == "whole iterations":  # which have no others beside them
        return work
    ways = ((DEVICE, HOST), (HOST, DEVICE))
    moves = tuple(Moved(*way, 16, random.randint(1, 99), 1) for way in ways)
    return work._replace(copies=((16, random.randint(1, 9)),), moves=moves, forks=2)


def times_of(cost, work):
    """An iteration's time; the times of decodes that go on, and of a launch."""
    alone = work._replace(prefill=(), copies=(), moves=(), forks=0)
    prompts = [new for new, _ in work.prefill]
    return (
        cost.iteration(work),
        cost.decode(alone) if work.decode_seqs else None,
        cost.launch(work.decode_seqs, len(prompts), sum(prompts)),
        cost.least(work.num_tokens),
        cost.transfer((Moved(DEVICE, "dram", 16, 1 + work.decode_seqs, 1),)),
    )


@pytest.mark.parametrize("case", CASES)
def test_drawn_iterations_take_the_golden_times(case, golden):
    cost, random = cost_of(*CASES[case]), Random(case)
    times = [times_of(cost, drawn_work(random, case, cost)) for _ in range(60)]
    row = {"first_ps": times[0][0], "times": digest_of(times), "software": cost.software}
    golden("costs.csv", case, row | {"origin": (cost.fingerprint or {}).get("way")})
