"""The model, the server and their prices, which must be of one machine."""

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, open_dict

from experiments.runs.given import Given
from experiments.runs.make import make
from testbed.core.errors import InputError
from testbed.core.specs import GpuSpec, ModelSpec, ServerSpec
from testbed.cost.model import CostModel

POOLS_OF = "kv_memory_of"


def make_machine(config: DictConfig) -> tuple[ModelSpec, ServerSpec]:
    """The model and its server; pools that were given for another machine are refused."""
    model, node = make(config.model), config.server.copy()
    pools = node.get("kv_memory_gib")
    if pools is not None and not isinstance(pools, Mapping):
        raise InputError(f"server.kv_memory_gib is {pools!r}; give GiB by model: server.kv_memory_gib.{model.name}=12")
    with open_dict(node):
        given_for = node.pop(POOLS_OF, None)
        node.pop("num_blocks", None)  # the pool's, whose blocks are the policy's
    server = make(node)
    if given_for is not None and model.name in server.kv_memory_gib:
        _check_pools(model, server, given_for)
    return model, server


def _check_pools(model: ModelSpec, server: ServerSpec, given_for: Mapping[str, Any]) -> None:
    """A pool in GiB is what one machine had left."""
    has = {"gpu": server.gpu.name, "num_gpus": server.num_gpus}
    if dict(given_for) == has:
        return
    same = " ".join(f"server.{POOLS_OF}.{key}={value}" for key, value in has.items() if given_for.get(key) != value)
    machine = f"{given_for.get('num_gpus')} {given_for.get('gpu')}"
    raise InputError(
        f"server.kv_memory_gib has {model.name}'s pool on {machine}, the server has {has['num_gpus']} {has['gpu']}: "
        f"~server.kv_memory_gib computes the pool, {same} keeps it"
    )


def make_cost(config: DictConfig, model: ModelSpec, server: ServerSpec, given: Given | None = None) -> CostModel:
    """The prices; those measured on another GPU than the server's are refused."""
    cost: CostModel = (given or Given(config, {})).make("cost", model, server)
    origin = getattr(cost, "fingerprint", None) or {}
    check_device(origin, server.gpu, "the server")
    if "source" in config.cost and "from" in origin:
        check_device(origin["from"], make(config.cost.source), "cost.source")
    return cost


def check_device(fingerprint: Mapping[str, Any], gpu: GpuSpec, whose: str) -> None:
    """A profile is of the GPU whose data sheet is at hand, measured there or derived for it."""
    device = fingerprint.get("device")
    if device in (None, gpu.name, gpu.device):
        return
    known = f"{gpu.name} ({gpu.device})" if gpu.device else f"{gpu.name} (whose data sheet names no device)"
    raise InputError(
        f"the profile is of {device}, {whose} has {known}: choose that GPU, or carry the profile over by "
        f"testbed derive-profile --to {gpu.name}"
    )
