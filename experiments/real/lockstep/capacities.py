"""The pools of models that ship, here and in the installed vLLM, by lengths and prefix caching."""

from collections.abc import Iterator, Sequence
from itertools import product

from testbed.core.shapes import read_model
from testbed.experiments.real.lockstep.model_configs import MODELS, config_of
from testbed.experiments.real.lockstep.server_starts import KV_BYTES, Asked, compared
from testbed.experiments.vllm_server.named import gpu_named

GPUS = ("a100-80gb", "h100-80gb", "b200")
PARALLEL = (1, 2, 4, 8)
FULL = 0.9  # of a GPU's memory, for weights and pool
LENGTHS = ("--max-model-len 2048", "--max-model-len 8192", "--max-model-len auto")
CACHING = ("--enable-prefix-caching", "--no-enable-prefix-caching")


def check_capacities(
    models: Sequence[str] = tuple(MODELS), gpus: Sequence[str] = GPUS
) -> Iterator[str]:
    """A line for each server whose pool differs, and the counts last."""
    return compared(asked for pair in product(models, gpus) for asked in _questions(*pair))


def _questions(name: str, gpu: str) -> Iterator[Asked]:
    """The commands of a model on the fewest GPUs that hold its weights; none if it is too large."""
    weights, memory = read_model(name).weight_bytes, gpu_named(gpu).memory_bytes
    holding = (n for n in PARALLEL if weights / n + KV_BYTES < FULL * memory)
    for num_gpus in list(holding)[:1]:
        for length, caching in product(LENGTHS, CACHING):
            yield Asked(name, config_of(name), gpu, f"-tp {num_gpus} {length} {caching}")
