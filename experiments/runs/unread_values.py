"""Refusals of configured values that nothing in the run reads."""

from dataclasses import asdict
from functools import cache
from typing import Any

from omegaconf import OmegaConf

from testbed.core.errors import InputError
from testbed.experiments.runs.choice_names import CONF, files_of
from testbed.run.config import RunConfig, ServerConfig, SoftwareConfig
from testbed.run.parts import Part


def check_unread(typed: RunConfig) -> None:
    """Raise InputError for a value of a roofline, of software times or of a GPU's memory that
    nothing reads.
    """
    roofline, choices = (typed.cost.parameters.get(name) for name in ("roofline", "choices"))
    if isinstance(roofline, Part) and isinstance(choices, Part):
        _check_roofline(typed, roofline, choices)
        _check_software(typed, choices)
    _check_memory(typed.server, typed.model.name)


def _check_memory(server: ServerConfig, model: str) -> None:
    """Raise InputError for another memory of a GPU that ships if the pool is given, so that
    nothing reads it.
    """
    if server.num_blocks is None and model not in server.kv_memory_gib:
        return
    sheet = _memory_of_shipped_gpu(server.gpu.name)
    if sheet is not None and server.gpu.memory_bytes != sheet:
        pool_key = "num_blocks" if server.num_blocks is not None else f"kv_memory_gib.{model}"
        raise InputError(
            key="server.gpu.memory_bytes",
            value=server.gpu.memory_bytes,
            problem=(
                f"nothing reads it, for server.{pool_key} gives the pool (~server.kv_memory_gib "
                "and server.num_blocks=null compute it from the memory)"
            ),
        )


@cache
def _memory_of_shipped_gpu(name: str) -> int | None:
    """The memory in bytes of a GPU of experiments/conf/gpu; None of another one."""
    if name not in files_of("gpu"):
        return None
    return int(OmegaConf.load(CONF / "gpu" / f"{name}.yaml").memory_bytes)


def _check_roofline(typed: RunConfig, roofline: Part, choices: Part) -> None:
    """Raise InputError for a value of cost.roofline that the run's costs do not read."""
    from testbed.cost.auto import OF_SYSTEMS  # these import NumPy, which --help does not need
    from testbed.run.machine import make_cost

    for name, value in roofline.parameters.items():
        unread: tuple[Any, ...] = choices.parameters.get(name), _of_system(typed, name), {}
        if value in (unread if name in OF_SYSTEMS else (_usual_roofline().get(name),)):
            continue
        key = f"cost.roofline.{name}"
        if name in OF_SYSTEMS:
            raise InputError(
                key=key,
                value=value,
                problem="nothing reads it, for software times are those of cost.choices",
                remedy=f"set cost.choices.{name}",
            )
        if make_cost(typed.cost, typed.model, typed.server).fingerprint is not None:
            raise InputError(
                key=key,
                value=value,
                problem="nothing reads it, for cost=auto takes a profile here",
                remedy=f"cost=analytic cost.efficiencies.{name}={value}",
            )


def _of_system(typed: RunConfig, name: str) -> Any:
    """The software's value of the key that a roofline and choices have."""
    return getattr(typed.software, "name" if name == "software" else name, None)


def _check_software(typed: RunConfig, choices: Part) -> None:
    """Raise InputError for software times of the user's own if the costs are whole iterations of
    a system, which have its software in them.
    """
    from testbed.cost.sections import SYSTEM
    from testbed.run.machine import cost_of

    usual = _shipped_software(str(choices.parameters.get("software")))
    own = [name for name, value in usual.items() if choices.parameters.get(name) != value]
    if own and SYSTEM in (cost_of(typed).fingerprint or {}):
        raise InputError(
            key=f"cost.choices.{own[0]}",
            value=choices.parameters[own[0]],
            problem="nothing reads it, for the costs are whole iterations, with their software",
            remedy="leave it out; cost.iterations=null takes none of another system",
        )


@cache
def _shipped_software(name: str) -> dict[str, Any]:
    """The times of a software that ships; nothing of another one."""
    if name not in files_of("software"):
        return {}
    times = asdict(SoftwareConfig(**_stated("software", name)))
    return {key: value for key, value in times.items() if key.startswith("overhead")}


@cache
def _usual_roofline() -> dict[str, Any]:
    """The values of cost.roofline that the default option has, but for those of its software."""
    from testbed.cost.analytic import Efficiencies
    from testbed.cost.auto import OF_SYSTEMS

    stated = _stated("efficiencies", "h200")
    return asdict(Efficiencies(**{k: v for k, v in stated.items() if k not in OF_SYSTEMS}))


def _stated(group: str, name: str) -> dict[str, Any]:
    """The values that the file of an option states."""
    values = OmegaConf.to_container(OmegaConf.load(CONF / group / f"{name}.yaml"))
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items() if key != "defaults"}
