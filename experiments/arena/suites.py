"""The suites of the arena: workloads, pools, loads and seeds, fixed and identified by a hash."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace

from testbed.core.errors import InputError
from testbed.core.spelling import did_you_mean

HARD = "testbed.experiments.arena.hard_traces:"
BLOCK_SIZE = 16  # tokens
SERVER = (
    "model=llama-3.1-8b",
    "gpu=h200",
    "slo.ttft_s=1",
    "slo.tpot_s=0.1",
    "workload.max_new_tokens=1x",  # clients declare what they get, which SGLang reserves
)


@dataclass(frozen=True)
class Case:
    """One workload.

    words: its trace, as overrides. num_requests: of a run; None: a closed loop, whose sessions are
    the load. pools: the pools of this workload alone, in place of the suite's.
    """

    name: str
    words: tuple[str, ...]
    num_requests: int | None = 300
    pools: tuple[float, ...] = ()

    @property
    def num_seqs(self) -> int:
        """Sequences of a request."""
        return int(dict(word.split("=", 1) for word in self.words).get("workload.num_seqs", 1))


@dataclass(frozen=True)
class Suite:
    """The cells that every entrant runs.

    pools: blocks of the pool as shares of the workload's working set, the different full blocks of
    its prompts. loads: rates as shares of the knee, the rate at which LRU serves when every request
    waits from the beginning. seeds: of every pool and load.
    """

    name: str
    cases: tuple[Case, ...]
    pools: tuple[float, ...]
    loads: tuple[float, ...]
    seeds: tuple[int, ...]

    @property
    def identity(self) -> str:
        """Sixteen hexadecimal digits of all of it."""
        text = json.dumps([asdict(self), SERVER, BLOCK_SIZE], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


DOCUMENTS = (
    "trace=guidellm",
    "trace.prefix_tokens=2048",
    "trace.prefix_count=60",
    "trace.prompt_tokens=256",
    "trace.output_tokens=64",
)
MIXED = (
    "trace=guidellm",
    "trace.prefix_tokens=512",
    "trace.prefix_count=40",
    "trace.prompt_tokens=1024",
    "trace.prompt_tokens_stdev=1200",
    "trace.output_tokens=256",
    "trace.output_tokens_stdev=200",
)
SHARED_PREFIX = (
    "trace=random",
    "trace.prefix_len=1024",
    "trace.input_len=256",
    "trace.output_len=64",
)
CASES = (
    Case("chat", ("trace=chat_histories",)),
    Case("documents", DOCUMENTS),
    Case("shared prefix", SHARED_PREFIX),
    Case("mixed lengths", MIXED),
    Case("samples", ("trace=chat_histories", "workload.num_seqs=4"), num_requests=150),
    Case("loop", (f"trace={HARD}Loop",), pools=(0.98,)),
    Case("scan", (f"trace={HARD}Scan",)),
    Case("burst", (f"trace={HARD}Burst",)),
)
BEAMS = Case("beams", ("trace=chat_histories", "workload.num_seqs=4", "workload.beam=true"), 150)
SUITES = {
    "quick": Suite("quick", CASES, (0.25, 0.75), (0.8,), (0, 1, 2, 3, 4)),
    "full": Suite(
        "full", (*CASES, BEAMS), (0.1, 0.25, 0.5, 1, 2), (0.5, 0.8, 1.1), tuple(range(8))
    ),
    "sprint": Suite("sprint", CASES, (0.5,), (0.8,), (0, 1)),
}


def suite_of(name: str, mooncake: str | None = None, agents: str | None = None) -> Suite:
    """The suite of this name, with the files of Mooncake's and agents' traces if they are given.
    Raises InputError for an unknown name.
    """
    if name not in SUITES:
        raise InputError(
            key="--suite",
            value=name,
            problem=f"is no suite{did_you_mean(name, [*SUITES])}",
            remedy=f"choose from {', '.join(SUITES)}",
        )
    cases = list(SUITES[name].cases)
    if mooncake is not None:
        cases.append(Case("mooncake", ("trace=mooncake", f"trace.path={mooncake}"), 1000))
    if agents is not None:
        words = ("trace=agent_sessions", f"trace.path={agents}", "trace.num_sessions=40")
        cases.append(Case("agents", words, num_requests=None))
    return replace(SUITES[name], cases=tuple(cases))
