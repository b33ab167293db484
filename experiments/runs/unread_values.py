"""Refusals of configured values that nothing in the run reads."""

from typing import Any

from testbed.core.errors import InputError
from testbed.experiments.runs.choice_names import CONF, files_of
from testbed.experiments.runs.own_options import stated, with_defaults
from testbed.run.config import RunConfig, ServerConfig
from testbed.run.parts import Part


def check_unread(typed: RunConfig) -> None:
    """Raise InputError for a value of a roofline, software times or memory that nothing reads."""
    roofline, choices = (typed.cost.parameters.get(name) for name in ("roofline", "choices"))
    if isinstance(roofline, Part) and isinstance(choices, Part):
        _check_roofline(typed, roofline, choices)
        _check_software(typed, choices)
    if typed.server.num_blocks is not None or typed.model.name in typed.server.kv_memory_gib:
        _check_memory(typed.server, typed.model.name)


def _check_memory(server: ServerConfig, model: str) -> None:
    """Raise InputError for another memory of a shipped GPU if the pool is given."""
    sheet = _shipped("gpu", server.gpu.name)
    if sheet and server.gpu.memory_bytes != sheet["memory_bytes"]:
        pool_key = "num_blocks" if server.num_blocks is not None else f"kv_memory_gib.{model}"
        raise InputError(
            key="server.gpu.memory_bytes",
            value=server.gpu.memory_bytes,
            problem=(
                f"nothing reads it, for server.{pool_key} gives the pool (~server.kv_memory_gib "
                "and server.num_blocks=null compute it from the memory)"
            ),
        )


def _check_roofline(typed: RunConfig, roofline: Part, choices: Part) -> None:
    """Raise InputError for a value of cost.roofline that the run's costs do not read."""
    from testbed.cost.auto import OF_SYSTEMS  # these import NumPy, which --help does not need
    from testbed.run.machine import make_cost

    usual = _shipped("efficiencies", "h200")
    for name, value in roofline.parameters.items():
        if name in OF_SYSTEMS:
            of_system = getattr(typed.software, "name" if name == "software" else name, None)
            if value not in (choices.parameters.get(name), of_system, {}):
                raise InputError(
                    key=f"cost.roofline.{name}",
                    value=value,
                    problem="nothing reads it, for software times are those of cost.choices",
                    remedy=f"set cost.choices.{name}",
                )
        elif (
            value != usual.get(name)
            and make_cost(typed.cost, typed.model, typed.server).fingerprint is not None
        ):
            raise InputError(
                key=f"cost.roofline.{name}",
                value=value,
                problem="nothing reads it, for cost=auto takes a profile here",
                remedy=f"cost=analytic cost.efficiencies.{name}={value}",
            )


def _check_software(typed: RunConfig, choices: Part) -> None:
    """Raise InputError for software times of the user's own if the costs are whole iterations of
    a system, which have its software in them.
    """
    from testbed.cost.sections import SYSTEM
    from testbed.run.machine import cost_of

    usual = _shipped("software", str(choices.parameters.get("software")))
    own = [
        name
        for name, value in usual.items()
        if name.startswith("overhead") and choices.parameters.get(name) != value
    ]
    if own and SYSTEM in (cost_of(typed).fingerprint or {}):
        raise InputError(
            key=f"cost.choices.{own[0]}",
            value=choices.parameters[own[0]],
            problem="nothing reads it, for the costs are whole iterations, with their software",
            remedy="leave it out; cost.iterations=null takes none of another system",
        )


def _shipped(group: str, name: str) -> dict[str, Any]:
    """The values of an option that ships; nothing of another one."""
    if name not in files_of(group):
        return {}
    file = CONF / group / f"{name}.yaml"
    return with_defaults(stated(file, file.stat().st_mtime_ns), group)
