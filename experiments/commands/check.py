"""`testbed check` and `lockstep`: plug-ins against the contract, and the installed vLLM's scheduler
against ours.
"""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any

from testbed.core.errors import InputError
from testbed.experiments.runs.progress import spoken


def main(options: Namespace) -> int:
    """Print the result; returns 1 where a clause is violated."""
    parameters = dict(map(parameter, options.parameters))
    from testbed.checking import check

    with spoken(lambda: f"checking {options.plug_in}"):
        broken = check(
            options.plug_in,
            num_slots=options.slots,
            max_len=options.max_len,
            host_slots=options.host_slots,
            num_examples=options.examples,
            **parameters,
        )
    if broken is None:
        print(f"{options.plug_in} keeps the contract")
        return 0
    print(f"{options.plug_in} breaks the contract, {broken}", *broken.calls, sep="\n    ")
    return 1


def parameter(text: str) -> tuple[str, Any]:
    """NAME=VALUE, with the value parsed as YAML."""
    import yaml

    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise InputError(f"{text!r} is not NAME=VALUE")
    return name, yaml.safe_load(value)


def lockstep(options: Namespace) -> int:
    """Print what was found; exit code 1 where anything differs."""
    if options.histories:
        from testbed.experiments.lockstep.manager_histories import check_histories

        lines = check_histories(options.histories, options.seed)
        different = len(lines) > 1
    elif options.capacity:
        from testbed.experiments.lockstep.capacities import check_capacities

        lines, different = check_capacities(options.overrides)
    else:
        return int(any([_differs(*run) for run in _runs(options)]))
    print(*lines, sep="\n")
    return int(different)


def _runs(options: Namespace) -> Iterator[tuple[str, Sequence[str], Any]]:
    """The name of each run, its overrides, and its requests where the configuration has none."""
    if not options.random:
        yield "", options.overrides, None
        return
    from random import Random

    from testbed.experiments.lockstep.comparison import draw

    for i in range(options.random):
        words, requests = draw(Random(options.seed + i), options.overrides, options.requests)
        yield f"seed {options.seed + i}: ", words, requests


def _differs(name: str, overrides: Sequence[str], requests: Any) -> bool:
    from testbed.experiments.lockstep.capacities import third_column
    from testbed.experiments.lockstep.comparison import (
        ITERATION_PS,
        compare,
        report,
        shortest,
        workload,
    )
    from testbed.experiments.lockstep.sides import served, sides_of

    make, setup = sides_of(overrides, requests)
    taken, left_out = served(setup)
    sides = make()
    found = compare(sides, taken, ITERATION_PS)
    lines = [*report(sides, found), *third_column(setup, taken, ITERATION_PS)]
    if left_out:
        lines.append(f"{left_out:,} requests never fit the pool, and are left out")
    print(name + lines[0], *lines[1:], sep="\n", flush=True)
    if found.first is None:
        return False
    print(
        "shortest workload that was found:",
        *workload(shortest(make, taken, ITERATION_PS)),
        sep="\n",
    )
    return True
