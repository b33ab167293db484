"""`testbed lockstep`: the scheduler of the installed vLLM or SGLang against ours."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from testbed.experiments.cli.parameters import AtLeastOne, ConfigFolders, Override, WholeNumber
from testbed.experiments.cli.served_command import NO_COMMAND, ServedCommand

Server = Annotated[
    Literal["vllm", "sglang"], Parameter(metavar="SERVER", help="the other scheduler")
]
RandomConfigs = Annotated[
    AtLeastOne | None, Parameter(help="N random configurations instead of yours")
]
Seed = Annotated[WholeNumber, Parameter(help="of the random configurations")]
NumRequests = Annotated[AtLeastOne, Parameter(help="in each of them")]
Drafts = Annotated[bool, Parameter(help="random configurations speculate")]
Priority = Annotated[bool, Parameter(help="random configurations serve by priority")]
Windows = Annotated[bool, Parameter(help="most layers of random configurations have a window")]
States = Annotated[bool, Parameter(help="random configurations cache the states of a model")]
Offload = Annotated[
    bool, Parameter(help="random servers have a cache below the device, stepped one by one")
]
Lmcache = Annotated[
    bool, Parameter(help="random servers have LMCache below the device, stepped one by one")
]
Configs = Annotated[
    Path | None,
    Parameter(
        metavar="FOLDER",
        help="`fits` for every config.json in it and variations of each, beside vLLM's own classes "
        "(an empty folder gets a file of each family)",
    ),
]
Starts = Annotated[
    Path | None,
    Parameter(
        metavar="FOLDER",
        help="whether a server starts, and with which pool, by options of the command for every "
        "config.json in it, beside vLLM's own classes (--random N draws some)",
    ),
]
Capacity = Annotated[
    bool,
    Parameter(
        help="the pools of twelve models that ship, of vLLM on three GPUs and of SGLang on five"
    ),
]


@Parameter(name="*")
@dataclass(frozen=True)
class OtherParts:
    """Comparisons of another part than the scheduler."""

    offload: Offload = False
    lmcache: Lmcache = False
    capacity: Capacity = False
    configs: Configs = None
    starts: Starts = None


@Parameter(name="*")
@dataclass(frozen=True)
class RandomRuns:
    """Random configurations with their requests."""

    random: RandomConfigs = None
    seed: Seed = 0
    drafts: Drafts = False
    windows: Windows = False
    priority: Priority = False
    states: States = False
    requests: NumRequests = 150

    def draw(
        self, server: str, overrides: Sequence[str]
    ) -> Iterator[tuple[str, Sequence[str], Any]]:
        """The name of each run, its overrides and its requests."""
        from testbed.experiments.real.lockstep import draws, sglang_draws

        for seed in range(self.seed, self.seed + (self.random or 0)):
            random, count = Random(seed), self.requests
            if server == "sglang":
                drawn = sglang_draws.draw(random, overrides, count)
            else:
                drawn = draws.draw(
                    random,
                    overrides,
                    count,
                    drafts=self.drafts,
                    windows=self.windows,
                    priority=self.priority,
                    states=self.states,
                )
            yield f"seed {seed}: ", *drawn


NONE_DRAWN, NO_OTHER = RandomRuns(), OtherParts()


def lockstep(
    server: Server,
    /,
    *overrides: Override,
    served: ServedCommand = NO_COMMAND,
    drawn: RandomRuns = NONE_DRAWN,
    parts: OtherParts = NO_OTHER,
    config_dir: ConfigFolders | None = None,
) -> int:
    """Compare the scheduler of the installed vLLM or SGLang with ours.

    Both serve one workload, every iteration taking the same time; prints how many iterations
    decide the same, the first that does not, and the shortest such workload. Exit code 1 if one
    differs. Unless a release is given, it is the nearest to the installed one. For example:

    testbed lockstep vllm server.num_blocks=400 '~server.kv_memory_gib'
    arrivals.rate=2

    testbed lockstep sglang --random 20

    testbed lockstep vllm --offload --random 30

    testbed lockstep vllm --starts configs --random 200

    testbed lockstep sglang --offload --random 30
    """
    words = NO_COMMAND.words(overrides, config_dir or [])
    if server == "sglang":
        return _lockstep_sglang(served, drawn, words, parts)
    _refuse("--from-sglang", served.from_sglang, "vllm")
    lines = _lines_of_vllm(parts, drawn)
    if lines is not None:
        return _printed(lines)
    return _compare("vllm", drawn, _served(words, served))


def _lines_of_vllm(parts: OtherParts, drawn: RandomRuns) -> Iterable[str] | None:
    """The lines of another part of vLLM, if one is asked for."""
    if parts.capacity:
        from testbed.experiments.real.lockstep.capacities import check_capacities

        return check_capacities()
    if parts.offload:
        from testbed.experiments.real.lockstep.vllm_offload import check_offloading

        return check_offloading(drawn.random or 20, drawn.seed, drawn.requests)
    if parts.lmcache:
        from testbed.experiments.real.lockstep.lmcache_offload import check_lmcache

        return check_lmcache(drawn.random or 20, drawn.seed, drawn.requests)
    if parts.configs is not None:
        from testbed.experiments.real.lockstep.config_comparison import check_configs

        return check_configs(parts.configs)
    if parts.starts is not None:
        from testbed.experiments.real.lockstep.start_options import check_starts

        return check_starts(parts.starts, drawn.random, drawn.seed)
    return None


def _lockstep_sglang(
    served: ServedCommand, drawn: RandomRuns, overrides: Sequence[str], parts: OtherParts
) -> int:
    of_vllm = {
        "from_vllm": served.from_vllm,
        "drafts": drawn.drafts,
        "windows": drawn.windows,
        "priority": drawn.priority,
        "lmcache": parts.lmcache,
        "configs": parts.configs,
        "starts": parts.starts,
    }
    for name, value in of_vllm.items():
        _refuse(f"--{name.replace('_', '-')}", value, "sglang")
    if parts.offload:
        from testbed.experiments.real.lockstep.sglang_offload import check_hicache

        return _printed(check_hicache(drawn.random or 20, drawn.seed, drawn.requests))
    if not parts.capacity:
        return _compare("sglang", drawn, served.words(overrides))
    from testbed.experiments.real.lockstep.sglang_capacities import check_capacities

    return _printed(check_capacities())


def _compare(server: str, drawn: RandomRuns, words: Sequence[str]) -> int:
    runs = drawn.draw(server, tuple(words)) if drawn.random else [("", tuple(words), None)]
    different = [_differs(server, *run) for run in runs]
    return int(any(different))


def _printed(lines: Iterable[str]) -> int:
    """Print them as they come; 1 if there is more than the one that counts."""
    count = 0
    for line in lines:
        print(line, flush=True)
        count += 1
    return int(count > 1)


def _refuse(option: str, value: object, server: str) -> None:
    """Raise InputError for an option that a lockstep with this server does not have."""
    from testbed.core.errors import InputError

    if value:
        other = "vllm" if server == "sglang" else "sglang"
        raise InputError(
            key=option, problem=f"is of testbed lockstep {other}", remedy="leave it out"
        )


def _served(overrides: Sequence[str], served: ServedCommand) -> list[str]:
    """The overrides with vLLM's system and the release nearest to the installed one, unless they
    name others, and with those of a server's command.
    """
    from testbed.experiments.real.lockstep.vllm_installation import installed_release
    from testbed.experiments.vllm_server.release_words import SYSTEM, words_of_release
    from testbed.run.override_words import key_of
    from testbed.vllm.releases import nearest_release

    words, keys = list(overrides), {key_of(word) for word in overrides}
    if "release" not in keys:
        words[:0] = words_of_release(nearest_release(installed_release()))
    if "system" not in keys:
        words.insert(0, f"+system={SYSTEM}")
    return served.words(words)


def _differs(server: str, name: str, overrides: Sequence[str], requests: Any) -> bool:
    """True if a run decides anything differently; prints the report. requests: None if the
    configuration has some.
    """
    from testbed.experiments.real.lockstep.comparison import (
        ITERATION_PS,
        compare,
        report,
        shortest,
        workload,
    )
    from testbed.experiments.real.lockstep.sglang_sides import sides_of_sglang
    from testbed.experiments.real.lockstep.sides import served, sides_of

    make, setup = (sides_of_sglang if server == "sglang" else sides_of)(overrides, requests)
    taken, left_out = served(setup)
    sides = make()
    comparison = compare(sides, taken, ITERATION_PS)
    lines = report(sides, comparison)
    if left_out:
        lines.append(f"{left_out:,} requests never fit the pool, and are left out")
    print(name + lines[0], *lines[1:], sep="\n", flush=True)
    if comparison.first is None:
        return False
    print(
        "shortest workload that was found:",
        *workload(shortest(make, taken, ITERATION_PS)),
        sep="\n",
    )
    return True
