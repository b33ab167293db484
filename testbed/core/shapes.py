"""The models that ship: one JSON file each, read by the simulator, the experiments and the
kernels.
"""

from dataclasses import fields
from functools import cache

from testbed.core.errors import InputError
from testbed.core.model_files import model_names as model_names
from testbed.core.model_files import shipped as shipped
from testbed.core.specs import OF_VLLM, SPECIAL, ModelSpec

CHOSEN = ("max_len", "kv_dtype_bytes", "weight_bits", "fp8_products")


@cache
def read_model(name: str) -> ModelSpec:
    """A model that ships, by its name."""
    return ModelSpec(**shipped(name)["shape"])


def check_known_shape(model: ModelSpec) -> None:
    """A model with the name of one that ships must have its shape; a deployment chooses the values
    CHOSEN alone. What only vLLM has of it may differ: a profile that was made before lacks it.
    """
    if model.name not in model_names():
        return
    shipped_model = read_model(model.name)
    free = {*CHOSEN, *OF_VLLM}
    for name in (field.name for field in fields(ModelSpec) if field.name not in free):
        here, there = getattr(model, name), getattr(shipped_model, name)
        if here != there:
            raise InputError(
                key=f"model.{name}",
                value=here,
                problem=f"{model.name} has {there}",
                remedy="give the model another name: model.name=...",
            )


def check_plain(model: ModelSpec, user: str) -> None:
    """Raise InputError for a model with parts that `user` does not support."""
    if not model.is_plain:
        parts = ", ".join(name for name in SPECIAL if getattr(model, name) is not None)
        raise InputError(
            key="model",
            value=model.name,
            problem=f"has {parts}, which {user} does not support",
            remedy="cost=analytic does",
        )
