"""Hydra's ConfigStore, filled from the models: the values of every run and their defaults, models
that ship, and a server of every GPU. Launchers pass the store to workers.
"""

from functools import cache
from typing import Any

from hydra.core.config_store import ConfigStore

from testbed.core.model_files import model_names, shipped
from testbed.experiments.runs.choice_names import ANY_SERVER, CUSTOM, HIDDEN, files_of
from testbed.run.config import EngineConfig, RunConfig, ServerConfig, defaults_of

# Of a deployment, whatever the model
CHOICES = {"kv_dtype_bytes": None, "weight_bits": None, "fp8_products": None}
GROUP_VALUES = (
    "engine",
    "software",
    "router",
    "handover",
    "speculation",
)  # values of a run that are options of their own groups
ABSENT = ("tiers", "kv_memory_of")  # values of a server that a file or an option adds
PROVIDER = "testbed"


@cache
def register_models() -> None:
    """Register the values of the models, once in a process."""
    store = ConfigStore.instance().store
    store("run_values", without(defaults_of(RunConfig), GROUP_VALUES), provider=PROVIDER)
    server_values = without(defaults_of(ServerConfig), ABSENT)
    store("server_values", server_values, provider=PROVIDER)
    store("gpu", defaults_of(EngineConfig), group="engine", provider=PROVIDER)
    servers = files_of("server")
    for name in model_names():
        shape = {**CHOICES, **shipped(name)["shape"]}
        store(name, shape, group="model", provider=PROVIDER)
        if f"{HIDDEN}{name}" not in servers:
            default: dict[str, Any] = {"defaults": [ANY_SERVER]}
            store(f"{HIDDEN}{name}", default, group="server", provider=PROVIDER)
    for name in files_of("gpu"):
        server: dict[str, Any] = {"defaults": [{"/gpu@gpu": name}, "/memory@_here_"]}
        store(name, server, group="server", provider=PROVIDER)


def without(values: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The values but for those of these names."""
    return {name: value for name, value in values.items() if name not in names}


def register_class(group: str, name: str, target: str) -> None:
    """Make a class MODULE:CLASS an option of a group, beside the built-in ones."""
    node = {"defaults": [CUSTOM], "_target_": target.replace(":", ".")}
    ConfigStore.instance().store(name, node, group=group, provider=PROVIDER)
