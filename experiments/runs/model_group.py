"""Hydra's group `model`, from the shapes that ship with the simulator; a folder of --config-dir may add to it."""

from hydra.core.config_store import ConfigStore

from testbed.core.shapes import model_names, shipped
from testbed.core.specs import ModelSpec

GROUP = "model"
MODEL_CLASS = f"{ModelSpec.__module__}.{ModelSpec.__qualname__}"


def register_models() -> None:
    """Put every shape into Hydra's store, which launchers carry to their workers."""
    for name in model_names():
        node = {"_target_": MODEL_CLASS, **shipped(name).shape}
        ConfigStore.instance().store(name=name, node=node, group=GROUP, provider="testbed.core.models")
