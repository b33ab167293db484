"""The Hydra front end of `testbed.front_end`: builds a configuration from names, values and
objects.
"""

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from testbed.build import KINDS
from testbed.config import RunConfig
from testbed.core.errors import InputError
from testbed.core.specs import GpuSpec, ModelSpec, ServerSpec
from testbed.experiments.runs.choice_names import CUSTOM, GROUPS, KEYS, names_of
from testbed.experiments.runs.compose import check_key, composed, typed_config
from testbed.experiments.runs.progress import one_line
from testbed.experiments.runs.run_folder import run_into
from testbed.experiments.runs.user_workload import TIMES, TIMING, user_trace
from testbed.memory.policy import MemoryPolicy
from testbed.parts import Part
from testbed.result import Views

SHORT = {
    "rate": "arrivals.rate",
    "duration_s": "arrivals.duration_s",
    "num_seqs": "workload.num_seqs",
    "beam": "workload.beam",
    "mix": "workload.mix",
    "max_len": "workload.max_len",
}
POOL = (  # other keys that set the size of a pool
    "null_blocks",
    "swap_space_gib",
    "server.num_blocks",
    "server.kv_memory_gib",
    "server.memory_utilization",
    "server.workspace_gib",
)
SPECS = (ModelSpec, ServerSpec, GpuSpec)


class HydraFrontEnd:
    """Composes with Hydra, stores run folders."""

    def configure(self, overrides: Sequence[str], options: Mapping[str, Any]) -> RunConfig:
        """Command-line overrides, then options: names of a group's options, values by key, or
        objects. Raises InputError for an option that `testbed run` does not have.
        """
        options = {key: _python(value) for key, value in options.items() if value is not None}
        trace = user_trace(options, overrides)
        if trace is not None:
            options["trace"] = trace
        if isinstance(options.get("policy"), MemoryPolicy):
            keys = [*options, *(word.partition("=")[0].lstrip("+~") for word in overrides)]
            if pool := next((key for key in keys if key.startswith(POOL)), None):
                raise InputError(
                    f"{pool} does not go with a policy that is made already, with its pool; give "
                    f"the class"
                )
        words, values, objects, nodes = (
            list(overrides),
            dict[str, Any](),
            dict[str, Any](),
            dict[str, Any](),
        )
        for key, value in options.items():
            if isinstance(value, str) and key in GROUPS:
                words.append(f"{KEYS.get(key, key)}={value}")
            elif isinstance(value, SPECS):
                blocks = {"num_blocks": None} if isinstance(value, ServerSpec) else {}
                nodes["server.gpu" if key == "gpu" else key] = asdict(value) | blocks
            elif key in KINDS and not isinstance(value, Mapping):
                objects[key] = _part(value)
                words.append(f"{key}={CUSTOM}")
            else:
                values[SHORT.get(key, key)] = value
        if TIMES in getattr(trace, "columns", ()) and not any(name in options for name in TIMING):
            words.append("arrivals=replay")
        return _config(words, values, objects, nodes)

    def measure(self, config: RunConfig, folder: Path) -> dict[str, Any]:
        """The summary of a run, from its folder below `folder` if it is complete there."""
        return run_into(config, folder).summary

    @property
    def views(self) -> Views:
        """The pages of results, which are built on this package."""
        from testbed.experiments.notebook import views

        return views


def _config(
    words: Sequence[str],
    values: Mapping[str, Any],
    objects: Mapping[str, Part],
    nodes: Mapping[str, Any],
) -> RunConfig:
    config = composed("run", tuple(words)).copy()
    for group, part in objects.items():
        config[group]["_target_"] = part.name
        if isinstance(size := _block_size(part), int):
            OmegaConf.update(
                config, f"{group}.block_size", size, force_add=True
            )  # costs may depend on it
    for key, node in nodes.items():
        OmegaConf.update(config, key, node, merge=False)
    choices = (
        word.split("=", 1) for word in words if word.partition("=")[0] in KINDS and "=" in word
    )
    users = {
        group for group, choice in choices if choice == CUSTOM or choice not in names_of(group)
    }
    for key, value in values.items():
        free = key.partition(".")[0] in users
        if not free:
            check_key(key, config, tuple(SHORT))
        try:
            OmegaConf.update(
                config, key, value, merge=value != {}, force_add=free
            )  # merged, {} would change nothing
        except OmegaConfBaseException as error:
            if isinstance(error, ConfigKeyError):  # of a mapping
                check_key(str(error.full_key), config, tuple(SHORT))
            raise InputError(f"{key}={reprlib.repr(value)}: {one_line(error)}") from error
    found = typed_config(config)
    parts = {key: getattr(found, key).updated(**part.parameters) for key, part in objects.items()}
    return replace(
        found, **{key: replace(parts[key], target=part.target) for key, part in objects.items()}
    )


def _part(value: Any) -> Part:
    """A class, a function, an instance, or a pair of one of the first two and its parameters."""
    if (
        isinstance(value, list)
        and len(value) == 2
        and callable(value[0])
        and isinstance(value[1], Mapping)
    ):
        return Part(value[0], value[1])
    return Part(value)


def _block_size(part: Part) -> Any:
    if part.is_instance:
        return getattr(part.target, "block_size", None)
    return part.parameters.get("block_size", getattr(part.target, "keywords", {}).get("block_size"))


def _python(value: Any) -> Any:
    """NumPy numbers as Python's, the only kind that a config accepts; a tuple, such as a pair, is
    one value.
    """
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return [_python(item) for item in value]
    return (
        value.item()
        if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0
        else value
    )
