"""One cell of the arena: an entrant's run on one workload, pool, load and seed, as a row."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from testbed.core.request import Rows
from testbed.core.slots import ceil_div
from testbed.experiments.arena.entrants import EVICTION, POLICY, REPLICAS, ROUTER, Entrant
from testbed.experiments.arena.rules import Rules
from testbed.experiments.arena.suites import BLOCK_SIZE, SERVER, Case, Suite
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.taken_values import BLOCK_SIZE as BLOCKS
from testbed.experiments.runs.taken_values import not_taken, policy_takes
from testbed.memory.prefix_cache.curves.accesses import num_different
from testbed.memory.prefix_cache.replay import prompts_of
from testbed.run.build import build
from testbed.run.config import RunConfig
from testbed.run.simulate import run, run_setup
from testbed.run.workload import make_workload

AT_ONCE = 1e6  # requests/s: every request waits from the beginning
MARGIN = 1.25  # a pool holds this many of the longest request, whatever share it is
TIER_SHARE = 0.5  # of the working set, in the DRAM of an entrant with a tier
PLAIN = Entrant("LRU", EVICTION, ())


class Condition(NamedTuple):
    """A workload, a pool and a load.

    pool, load: the shares of the suite. num_blocks: of the pool. rate: requests/s, or sessions at
    once of a closed loop. working_set: different full blocks of the prompts. longest: tokens of the
    longest sequence, which is the server's limit.
    """

    case: Case
    pool: float
    load: float
    num_blocks: int
    rate: float
    working_set: int
    longest: int

    @property
    def name(self) -> str:
        return f"{self.case.name}, pool {self.pool:g}, load {self.load:g}"


@dataclass(frozen=True)
class Row:
    """The measures of one run.

    hits: share of the prompts' tokens that a cache had. computed: tokens of prompts that were
    computed, those of preempted requests included. idle_memory: share of the pool that is reserved
    or lost inside blocks. Times in seconds. job_s: mean from arrival to last token. goodput:
    requests/s inside TTFT 1 s and TPOT 0.1 s. cpu_us: of the process for an iteration; the only
    number that differs from run to run.
    """

    hits: float
    computed: int
    idle_memory: float
    ttft_p50_s: float
    ttft_p99_s: float
    itl_p50_s: float
    itl_p99_s: float
    job_s: float
    goodput: float
    rejected: int
    preemptions: int
    cpu_us: float


def workload_words(case: Case, rate: float) -> list[str]:
    """The overrides of a workload at a rate."""
    if case.num_requests is None:
        return [*case.words, "arrivals=sessions", f"arrivals.at_once={max(1, round(rate))}"]
    arrivals = (f"arrivals.num_requests={case.num_requests}", f"arrivals.rate={rate:.6g}")
    return [*case.words, "arrivals=benchmark", *arrivals]


def words_of(condition: Condition, entrant: Entrant, rules: Rules, seed: int) -> list[str]:
    """All overrides of a cell."""
    chosen_policy = {"policy": (entrant.target or "") if entrant.kind == POLICY else ""}
    left_out = not_taken(rules.words, chosen_policy)
    return [
        *SERVER,
        f"model.max_len={condition.longest + rules.spare_len}",
        *[word for word in rules.words if word not in left_out],
        *workload_words(condition.case, condition.rate),
        *pool_words(condition.num_blocks, rules, in_blocks=policy_takes(chosen_policy, BLOCKS)),
        *(tier_words(condition.working_set) if entrant.has_tier else ()),
        f"seed={seed}",
        *rules.words_of(entrant),
    ]


def pool_words(num_blocks: int, rules: Rules, *, in_blocks: bool) -> list[str]:
    """The overrides of a pool. in_blocks: for a policy that has them; others have the same bytes,
    without the null blocks that the system takes of them.
    """
    if in_blocks:
        return ["~server.kv_memory_gib", f"server.num_blocks={num_blocks}"]
    config = configured([*SERVER, *rules.words])
    block_bytes = BLOCK_SIZE * config.model.kv_bytes_per_token
    size_gib = ((num_blocks - config.null_blocks) * block_bytes + 1) / (1 << 30)
    return [f"server.kv_memory_gib={{{config.model.name}: {size_gib!r}}}"]


def tier_words(working_set: int) -> list[str]:
    """The overrides of DRAM for TIER_SHARE of a working set."""
    block_bytes = BLOCK_SIZE * configured(SERVER).model.kv_bytes_per_token
    size_gib = TIER_SHARE * working_set * block_bytes / (1 << 30)
    return ["+tier@server.tiers.dram=dram", f"server.tiers.dram.size_gib={size_gib:.6g}"]


def conditions_of(suite: Suite, case: Case, rules: Rules) -> list[Condition]:
    """The pools of a workload by its working set, each with rates by the knee that LRU has there.
    Both are measured with the first seed, the longest sequence with all.
    """
    words = [*SERVER, *rules.words, *workload_words(case, AT_ONCE), *rules.words_of(PLAIN)]
    drawn = [make_workload(configured([*words, f"seed={seed}"])).rows for seed in suite.seeds]
    working_set = num_different([*prompts_of(drawn[0], BLOCK_SIZE)])
    longest = max(longest_of(rows) for rows in drawn)
    most = MARGIN * case.num_seqs * ceil_div(longest, BLOCK_SIZE)
    conditions = []
    for pool in case.pools or suite.pools:
        num_blocks = max(round(pool * working_set), round(most) + 1)
        at_once = Condition(case, pool, 1, num_blocks, AT_ONCE, working_set, longest)
        knee = knee_of(at_once, rules, suite.seeds[0])
        conditions += [at_once._replace(load=load, rate=load * knee) for load in suite.loads]
    return conditions


def longest_of(rows: Rows) -> int:
    """The tokens of the longest sequence."""
    return int((rows.prompt_len + rows.output_len).max())


def knee_of(condition: Condition, rules: Rules, seed: int) -> float:
    """Requests/s that LRU serves when all wait; for a closed loop the sessions that run then."""
    summary = run(configured(words_of(condition, PLAIN, rules, seed))).summary
    if condition.case.num_requests is None:
        return float(summary["batch"]["mean_over_time"])
    return float(summary["throughput"]["requests_per_s"])


def row_of(condition: Condition, entrant: Entrant, rules: Rules, seed: int) -> Row:
    """Simulate one cell."""
    scaled = condition._replace(
        rate=condition.rate * (REPLICAS if entrant.kind == ROUTER else 1),
        num_blocks=condition.num_blocks + (condition.working_set if entrant.is_infinite else 0),
    )
    return row_of_run(configured(words_of(scaled, entrant, rules, seed)))


def row_of_run(config: RunConfig) -> Row:
    """Simulate a configuration."""
    setup = build(config)
    began = time.process_time()
    summary = run_setup(setup).summary
    cpu_s = time.process_time() - began
    return measured(summary, int(setup.workload.rows.prompt_len.sum()), cpu_s)


def measured(summary: Mapping[str, Any], prompt_tokens: int, cpu_s: float) -> Row:
    """The row of a summary."""
    counters, memory = summary["counters"], summary["memory"]
    found = counters.get("hit_tokens", 0)
    return Row(
        hits=found / counters["tokens"] if counters.get("tokens") else 0.0,
        computed=counters.get("tokens", prompt_tokens) - found,
        idle_memory=memory["reserved"]["over_time"] + memory["internal"]["over_time"],
        ttft_p50_s=summary["ttft_s"]["p50"],
        ttft_p99_s=summary["ttft_s"]["p99"],
        itl_p50_s=summary["itl_s"]["p50"],
        itl_p99_s=summary["itl_s"]["p99"],
        job_s=summary["e2e_s"]["mean"],
        goodput=summary["slo"]["goodput_requests_per_s"],
        rejected=summary["requests"]["rejected"],
        preemptions=sum(summary["preemptions"].values()),
        cpu_us=1e6 * cpu_s / max(summary["iterations"], 1),
    )
