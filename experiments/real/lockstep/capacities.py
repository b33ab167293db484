"""The pools of models that ship, here and in the installed vLLM, by lengths and prefix caching."""

from collections.abc import Iterator, Sequence
from itertools import product

from testbed.experiments.real.lockstep.model_configs import MODELS, config_of
from testbed.experiments.real.lockstep.server_starts import Asked, compared

GPUS = ("a100-80gb", "h100-80gb", "b200")
LENGTHS = ("--max-model-len 2048", "--max-model-len auto --no-async-scheduling")
CACHING = ("--enable-prefix-caching", "--no-enable-prefix-caching")
DIVIDED = ("", "-tp 4")


def check_capacities(
    models: Sequence[str] = tuple(MODELS), gpus: Sequence[str] = GPUS
) -> Iterator[str]:
    """A line for each server whose pool differs, and the counts last."""
    words = [" ".join(filter(None, each)) for each in product(LENGTHS, CACHING, DIVIDED)]
    return compared(
        Asked(name, config_of(name), gpu, options)
        for name, gpu, options in product(models, gpus, words)
    )
