"""Refusals of configured values that nothing in the run reads."""

from collections.abc import Sequence, Set
from dataclasses import asdict, fields
from typing import Any

from testbed.core.errors import InputError
from testbed.cost.software import OF_PROFILE, SoftwareTimes
from testbed.experiments.runs.choice_names import CONF, files_of
from testbed.experiments.runs.own_options import stated, with_defaults
from testbed.run.config import RunConfig
from testbed.run.override_words import key_of
from testbed.run.parts import Part

OF_SYSTEM = "software."


def check_unread(typed: RunConfig, words: Sequence[str]) -> None:
    """Raise InputError for a value of a roofline, of software times or of a GPU's memory that
    nothing reads. words: those of the user, which alone set such values, or name files that may.
    """
    given = [f"{key_of(word).rpartition('@')[2]}." for word in words]
    has_files = any(word.startswith("--config-dir") for word in words)
    for place, check in CHECKS.items():
        if has_files or any(key.startswith(place) or place.startswith(key) for key in given):
            check(typed)
    if names := {key.split(".")[1] for key in given if key.startswith(OF_SYSTEM)} - {"name"}:
        _check_system(typed, names)


def _check_memory(typed: RunConfig) -> None:
    """Raise InputError for another memory of a shipped GPU if the pool is given."""
    server, model = typed.server, typed.model.name
    sheet = _shipped("gpu", server.gpu.name)
    is_given = server.num_blocks is not None or model in server.kv_memory_gib
    if is_given and sheet and server.gpu.memory_bytes != sheet["memory_bytes"]:
        pool_key = "num_blocks" if server.num_blocks is not None else f"kv_memory_gib.{model}"
        raise InputError(
            key="server.gpu.memory_bytes",
            value=server.gpu.memory_bytes,
            problem=(
                f"nothing reads it, for server.{pool_key} gives the pool (~server.kv_memory_gib "
                "and server.num_blocks=null compute it from the memory)"
            ),
        )


def _check_roofline(typed: RunConfig) -> None:
    """Raise InputError for a value of cost.roofline of the user's own if the costs are those of a
    profile.
    """
    from testbed.run.machine import make_cost  # this imports NumPy, which --help does not need

    roofline = typed.cost.parameters.get("roofline")
    if not isinstance(roofline, Part):
        return
    own = _unlike(roofline, _shipped("efficiencies", "h200"))
    if own and make_cost(typed.cost, typed.model, typed.server).fingerprint is not None:
        raise InputError(
            key=f"cost.roofline.{own}",
            value=roofline.parameters[own],
            problem="nothing reads it, for cost=auto takes a profile here",
            remedy=f"cost=analytic cost.efficiencies.{own}={roofline.parameters[own]}",
        )


def _check_software(typed: RunConfig) -> None:
    """Raise InputError for software times of the user's own that the costs do not charge: those of
    whole iterations, or fitted with a profile, have their software in them.
    """
    from testbed.run.machine import cost_of

    software, system = typed.cost.parameters.get("software"), typed.software
    if not isinstance(software, Part):
        return
    of_profile = asdict(OF_PROFILE)
    of_name = _shipped("software", str(software.parameters.get("name")))
    usual = of_name or (asdict(system) if system else of_profile)
    own = {
        name: value
        for name, value in software.parameters.items()
        if value not in (usual.get(name, value), of_profile.get(name, value))
    }
    own.pop("name", None)
    charged = cost_of(typed).times if own else None
    for name, value in own.items():
        if getattr(charged, name, value) != value:
            raise _uncharged(f"cost.software.{name}", value)


def _check_system(typed: RunConfig, names: Set[str]) -> None:
    """Raise InputError for a time of the system, of these names, that the costs do not charge: they
    have their software in them, or software times of their own.
    """
    from testbed.run.machine import cost_of

    if typed.software is None:
        return
    own = [field.name for field in fields(SoftwareTimes) if field.name in names]
    software = typed.cost.parameters.get("software")
    charged = cost_of(typed).times if own else None
    for name in own:
        value = getattr(typed.software, name)
        if getattr(charged, name, value) == value:
            continue
        if isinstance(software, Part) and software.parameters.get(name) == value:
            raise _uncharged(f"software.{name}", value)
        raise InputError(
            key=f"software.{name}",
            value=value,
            problem="nothing reads it, for these costs have software times of their own",
            remedy=f"cost.software.{name}={value}",
        )


def _uncharged(key: str, value: Any) -> InputError:
    return InputError(
        key=key,
        value=value,
        problem="nothing reads it, for the costs have their software in them",
        remedy="leave it out; cost.iterations=null takes none of another system",
    )


def _unlike(part: Part, usual: dict[str, Any]) -> str | None:
    """The first parameter that has another value than the option that ships; None without one."""
    values = part.parameters.items()
    return next((name for name, value in values if value != usual.get(name, value)), None)


def _shipped(group: str, name: str) -> dict[str, Any]:
    """The values of an option that ships; nothing of another one."""
    if name not in files_of(group):
        return {}
    file = CONF / group / f"{name}.yaml"
    return with_defaults(stated(file, file.stat().st_mtime_ns), group)


CHECKS = {  # by the place of the values
    "cost.roofline.": _check_roofline,
    "cost.software.": _check_software,
    "software.": _check_software,
    "server.gpu.": _check_memory,
}
