"""`testbed check` and `lockstep`: plug-ins against the contract, and the installed vLLM's scheduler against ours."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any

from testbed.core.errors import InputError
from testbed.experiments.commands.terminal import Parser, at_least_one
from testbed.experiments.runs.progress import spoken

EXAMPLE = "testbed lockstep vllm +system=vllm-v1 server.num_blocks=400 '~server.kv_memory_gib' arrivals.rate=2"


def main(argv: list[str]) -> int:
    """Print the result; returns 1 where a clause is violated."""
    this = Parser(
        "check",
        "Checks a memory policy against every clause of the contract, in pools of several sizes; prints the first "
        "violated clause and the shortest sequence of calls that violates it. A scheduler is simulated and every plan "
        "compared with its outcome; a cost model computes costs in spans and one by one.",
    )
    this.add_argument("plug_in", metavar="MODULE:CLASS")
    this.add_argument("parameters", nargs="*", metavar="NAME=VALUE", help="parameters of the class, without its pool")
    this.add_argument("--slots", type=int, help="slots of a single pool")
    this.add_argument("--max-len", type=int, help="the longest sequence in tokens")
    this.add_argument("--host-slots", type=int, help="slots of the host pool")
    this.add_argument("--examples", type=int, default=200, help="random histories in each pool (default: 200)")
    options = this.parse_args(argv)
    parameters = dict(map(parameter, options.parameters))
    from testbed.checking import check

    with spoken(lambda: f"checking {options.plug_in}"):
        broken = check(
            options.plug_in, num_slots=options.slots, max_len=options.max_len, host_slots=options.host_slots,
            num_examples=options.examples, **parameters,
        )  # fmt: skip
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


def lockstep(argv: list[str]) -> int:
    """Print what was found; exit code 1 where anything differs."""
    this = Parser(
        "lockstep",
        "Serve one workload by the scheduler of the installed vLLM and by ours, every iteration taking the same time; "
        "print how many iterations decide the same, the first that does not, and the shortest such workload. Exit "
        "code 1 where one differs.",
        epilog=f"Example: {EXAMPLE}. Overrides are those of `testbed run`.",
    )
    this.add_argument("server", choices=["vllm"])
    this.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="the configuration, as `testbed run` takes it")
    this.add_argument("--random", type=at_least_one, metavar="N", help="N random configurations instead of yours")
    this.add_argument("--seed", type=int, default=0, help="of the random configurations (default: 0)")
    this.add_argument("--requests", type=at_least_one, default=150, help="in each of them (default: 150)")
    this.add_argument("--histories", type=at_least_one, metavar="N", help="N histories of vLLM's KV cache manager")
    this.add_argument("--capacity", action="store_true", help="pages and blocks of the shapes that ship, on H200s")
    options = this.parse_args(argv)
    if options.histories:
        from testbed.experiments.lockstep.manager_histories import check_histories

        lines = check_histories(options.histories, options.seed)
        print(*lines, sep="\n")
        return int(len(lines) > 1)
    if options.capacity:
        from testbed.experiments.lockstep.capacities import check_capacities

        lines, different = check_capacities(options.overrides)
        print(*lines, sep="\n")
        return int(different)
    return int(any([_differs(*run) for run in _runs(options)]))


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
    from testbed.experiments.lockstep.comparison import ITERATION_PS, compare, report, shortest, workload
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
    print("shortest workload that was found:", *workload(shortest(make, taken, ITERATION_PS)), sep="\n")
    return True
