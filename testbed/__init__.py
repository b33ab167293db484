"""A discrete-event simulator of KV-cache memory management in LLM serving.

For a notebook: `simulate` is one run, `sweep` many of them, `capacity` the highest rate that keeps objectives. They
take the names and options of the command line, and live where configs are read (`experiments.front_door`); what they
need is imported when they are first used.
"""

from typing import TYPE_CHECKING, Any

from testbed.compiled import use_build

if TYPE_CHECKING:
    from experiments.front_door import Capacity, Result, capacity, simulate, sweep

__all__ = ["Capacity", "Result", "capacity", "simulate", "sweep"]

use_build()  # before any module that it may hold is imported


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'testbed' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("experiments.front_door"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
