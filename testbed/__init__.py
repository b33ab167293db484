"""A discrete-event simulator of KV-cache memory management in LLM serving.

For a notebook: `simulate` is one run, `sweep` many of them, `capacity` the highest rate that keeps
objectives (`capacities`: with several seeds), `check` tests your memory policy. They take the names
and options of the command line.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testbed.api import capacities as capacities
    from testbed.api import capacity as capacity
    from testbed.api import simulate as simulate
    from testbed.api import sweep as sweep
    from testbed.checks.checking import check as check
    from testbed.run.result import Result as Result
    from testbed.study.capacity_search import Capacities as Capacities
    from testbed.study.capacity_search import Capacity as Capacity

__all__ = [
    "Capacities",
    "Capacity",
    "Result",
    "__version__",
    "capacities",
    "capacity",
    "check",
    "simulate",
    "sweep",
]


def __getattr__(name: str) -> Any:
    """Names that need more than this module are imported when they are first used."""
    if name == "__version__":
        from importlib.metadata import version

        return version("kvcache-testbed")
    if name == "arena":
        from importlib import import_module

        return import_module("testbed.arena")
    if name not in __all__:
        raise AttributeError(f"module 'testbed' has no attribute {name!r}")
    from importlib import import_module

    module = "testbed.checks.checking" if name == "check" else "testbed.api"
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return __all__
