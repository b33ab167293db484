"""What a run was, in a few words, and how its costs were tested: every summary begins with it;
tables of a run.
"""

import csv
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from statistics import median
from typing import TYPE_CHECKING, Any

from testbed.compiled import release
from testbed.config import RunConfig
from testbed.core.request import Workload
from testbed.core.specs import GIB, ModelSpec, ServerSpec
from testbed.cost.auto import NAME, OTHER_CACHE, OTHER_GPU, OTHER_MODEL, ROOFLINE
from testbed.cost.model import NO_SOFTWARE, CostModel
from testbed.cost.sections import SYSTEM
from testbed.cost.speculative import SpeculativeCost
from testbed.cost.transfers import transfers_origin
from testbed.fleet.parts import EngineParts
from testbed.identity import ROOT, code_hash
from testbed.memory.capabilities import Capabilities
from testbed.memory.groups.grouped import Grouped
from testbed.memory.layouts import BlockLayout, ExtentLayout, Layout
from testbed.memory.policy import PoolSpec
from testbed.oracles import future_read
from testbed.parts import Part, constructor_parameters
from testbed.sched.scheduler import Scheduler
from testbed.sched.vllm_v1 import VllmV1
from testbed.vllm_pages import pages_of

RUN = "run"
ID = "id"
CONTENTS = "contents_note"
ENGINES = "engines"  # of a fleet: some numbers of each engine
SIMULATED = {"acceptance", "found_share", "seed"}  # of a speculation, in the tokens' place
PLAIN = (bool, int, float, str)
TESTED = ROOT / "cost" / "left_out.csv"  # `testbed validate costs` writes it
# Who measured the profile that a prediction in that table starts from: ours, which ship
SHIPPED = "measured"
SOURCE = re.compile(r"\w+ \((.*)\)")  # of costs, behind the name of their code
NOT_TESTED = "unknown, such costs were not tested"
WHOLE_RUNS = {"TTFT": "ttft_percent", "TPOT": "tpot_percent", "latency": "latency_percent"}
LEFT_OUT = ("cost_profile", ENGINES)  # not in a summary's row: nested descriptions


def describe(
    config: RunConfig, pool: PoolSpec, scheduler: Scheduler, cost: CostModel
) -> dict[str, Any]:
    """Model, server, GPU, pool (slots, blocks, GiB), policy, scheduler, source of costs; the rest
    follows them.

    The pool's keys: see `_pool_numbers`.
    """
    model, server, policy = config.model, config.server, scheduler.policy
    return {
        "model": model.name,
        "server": server.name,
        "gpu": server.gpu.name,
        "num_gpus": server.num_gpus,
        **_pool_numbers(pool, scheduler.memory.layout),
        **_vllms_numbers(config, pool, scheduler),
        "policy": _part(config.policy, policy),
        "scheduler": _part(config.scheduler, scheduler),
        "cost": cost_source(config, cost),
        "preemption": configured(config.preemption),
        "future_read": future_read(policy=config.policy, scheduler=config.scheduler),
        "trace": configured(config.trace),
        "arrivals": configured(config.arrivals),
        **fleet_of(config),
        **speculation_of(config, cost),
        "seed": config.seed,
        "cost_error": tested(cost, model, server),
        "scheduler_note": scheduler.note(
            min(model.max_len, config.workload.max_len or model.max_len)
        ),
        **software(),
    }


def _pool_numbers(pool: PoolSpec, layout: Layout | None) -> dict[str, Any]:
    """slot_layers: the layers of which a slot has a token's K and V, all but for a policy of
    several groups. pool_blocks and block_size (tokens) are None where the policy has no blocks;
    pool_gib is over all GPUs together.
    """
    size = layout.block_size if isinstance(layout, BlockLayout | ExtentLayout) else None
    block_size = size if isinstance(size, int) and size > 0 else None
    return {
        "pool_slots": pool.num_slots,
        "slot_layers": pool.num_layers,
        "pool_blocks": None if block_size is None else pool.num_slots // block_size,
        "block_size": block_size,
        "pool_gib": round(pool.num_slots * pool.layer_bytes * pool.num_layers / GIB, 4),
    }


def was_served(summary: Mapping[str, Any]) -> bool:
    """Whether the engine served the run in real time, on a GPU or a CPU."""
    return "engine" in summary


def costs_of(summary: Mapping[str, Any]) -> str:
    """The source and the tested error of a simulated run's costs; empty for a run on a GPU."""
    run = summary.get(RUN, {})
    if was_served(summary) or "cost_error" not in run:
        return ""
    return f"{source_of_costs(run['cost'])}; error when tested: {run['cost_error']}"


def source_of_costs(cost: str) -> str:
    """What costs rest on, without the name of the code that reads it; of a cost model that does not
    say it, the name.
    """
    match = SOURCE.fullmatch(cost)
    return match[1] if match else cost


def _vllms_numbers(config: RunConfig, pool: PoolSpec, scheduler: Scheduler) -> dict[str, Any]:
    """What vLLM would log at its start: tokens of the KV cache, the null block's included, and how
    many of its longest sequences fit; nothing of a scheduler that is not vLLM V1's.
    """
    policy = scheduler.policy
    block_size = config.policy.parameters.get("block_size")
    if not isinstance(scheduler, VllmV1) or not isinstance(block_size, int):
        return {}
    model, is_hybrid = config.model, isinstance(policy, Grouped)
    budget = scheduler.max_num_batched_tokens
    pages = pages_of(
        model, pool.num_gpus, block_size, is_hybrid=is_hybrid, max_num_batched_tokens=budget
    )
    if scheduler.drafts:  # of full attention, as all that drafts are modelled for
        num_pages = pool.num_slots // block_size + 1
    else:
        num_bytes = pool.num_slots * pool.layer_bytes * pool.num_layers // pool.num_gpus
        num_pages = num_bytes // pages.page_bytes + 1  # the null page
    concurrency = num_pages / pages.of_sequence(model.max_len)
    return {
        "kv_cache_tokens": pages.num_tokens(num_pages),
        "max_model_len": model.max_len,
        "max_concurrency": round(concurrency, 2),
    }


def contents_note(memory: Capabilities, workload: Workload) -> str | None:
    """What to know of the hits of a prefix cache whose workload names no contents; else None."""
    if memory.publishes is None or workload.names_contents:
        return None
    return (
        "the trace does not say what prompts contain, so none is found in the prefix cache "
        "(trace=random, guidellm, chat_histories and files with prompt ids do)"
    )


def fleet_of(config: RunConfig) -> dict[str, Any]:
    """The number of engines, their router, their faults, how some prefill for others, and the
    tiers that all use; nothing of a run without a router.
    """
    if config.replicas is None:
        return {}
    router = "RoundRobin()" if config.router is None else configured(config.router)
    faults = {} if config.faults is None else {"faults": config.faults}
    split = {}
    if config.prefill_replicas is not None:
        rule = "Whole()" if config.handover is None else configured(config.handover)
        split = {"prefill_replicas": config.prefill_replicas, "handover": rule}
    shared = ", ".join(config.server.shared_tiers)
    tiers = {"shared_tiers": shared} if shared else {}
    return {"replicas": config.replicas, "router": router, **faults, **split, **tiers}


def speculation_of(config: RunConfig, cost: CostModel) -> dict[str, Any]:
    """Who drafts, and what the times of drafts rest on; nothing of a run without speculation."""
    if config.speculation is None or not isinstance(cost, SpeculativeCost):
        return {}
    passes = "no time of the GPU" if cost.drafter is None else cost.drafter.provenance
    costs = f"drafts: {passes}; attention of several queries reads what one does"
    unread = {"efficiencies"}
    if config.engine is not None:
        costs = "measured; accepted are the drafts that the model generates itself"
        unread |= SIMULATED
    shown = {k: v for k, v in config.speculation.parameters.items() if k not in unread}
    return {
        "speculation": configured(Part(config.speculation.target, shown)),
        "draft_cost": costs,
    }


def servers_of(config: RunConfig, parts: Sequence[EngineParts]) -> dict[str, str]:
    """The servers, pools and costs of the engines that have another server than the first; nothing
    where all have the same.
    """
    if not config.servers:
        return {}
    texts = [_server_of(config.of_engine(int(number)), number, parts) for number in config.servers]
    return {"servers": "; ".join(texts)}


def _server_of(config: RunConfig, number: str, parts: Sequence[EngineParts]) -> str:
    own, server = parts[int(number)], config.server
    slots = "" if own.pool is None else f", {own.pool.num_slots:,} slots"
    costs = f"{cost_source(config, own.cost)}, error {tested(own.cost, config.model, server)}"
    return f"engine {number}: {server.num_gpus} x {server.gpu.name}{slots}, {costs}"


def configured(value: Any) -> str:
    """A part of a config as one would write it in Python: `Paged(block_size=16,
    watermark=0.01)`.
    """
    if isinstance(value, Part):
        return value.name.rpartition(".")[2] + configured(value.parameters)
    if isinstance(value, Mapping):
        parameters = [f"{key}={configured(parameter)}" for key, parameter in value.items()]
        return f"({', '.join(parameters)})"
    return str(value)


def _part(part: Part, built: object) -> str:
    if part.is_named:
        return configured(part)
    values = {name: getattr(built, name, None) for name in constructor_parameters(type(built))}
    return type(built).__qualname__ + configured(
        {k: v for k, v in values.items() if isinstance(v, PLAIN)}
    )


OF_NO_TIME = ("name", "iterations")  # fields of a SoftwareConfig


def cost_source(config: RunConfig, cost: CostModel) -> str:
    times = (
        {key: value for key, value in asdict(config.software).items() if key not in OF_NO_TIME}
        if config.software
        else {}
    )
    name, where = config.cost.name.rpartition(".")[2], origin(cost, times)
    if config.server.tiers:
        where = f"{where}; transfers: {transfers_origin(config.server)}".removeprefix("; ")
    if config.model.latent and config.model.latent.index_bytes:
        where = f"{where}; attention reads all tokens, not only those that its indexer selects"
    return f"{name} ({where.removeprefix('; ')})" if where else name


@cache
def software() -> dict[str, str | None]:
    """Version, the commit where there is one (with + where files differ from it), and a hash of the
    simulator.
    """
    return {"version": release(), "commit": _commit(), "simulator": code_hash()[:16]}


def _commit() -> str | None:
    if not (
        ROOT.parent / ".git"
    ).exists():  # installed: a repository around it would be another one
        return None
    command = [
        "git",
        "-C",
        str(ROOT.parent),
        "describe",
        "--always",
        "--abbrev=12",
        "--dirty=+",
        "--exclude=*",
    ]
    quiet = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=5, env=quiet
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def origin(cost: CostModel, software: Mapping[str, float | None]) -> str:
    """Measured, derived or roofline, with GPU and date, and whose software time is charged; empty:
    it does not say.

    software: the times of the system that is simulated, as the choices have them; others are the
    user's own.
    """
    fingerprint = cost.fingerprint or {}
    where = _where(fingerprint) if fingerprint else cost.provenance
    if not where or cost.software == NO_SOFTWARE:
        return where
    is_own = any(getattr(cost.choices, name, value) != value for name, value in software.items())
    return (
        f"{where}; "
        f"{_software(cost.software, fingerprint)}{', changed' if cost.software and is_own else ''}"
    )


def _where(fingerprint: Mapping[str, Any]) -> str:
    device, began = fingerprint.get("device"), fingerprint.get("from")
    if began is None:
        stand_ins = [
            f"{part} by {how}" for part, how in fingerprint.get("not_measured", {}).items()
        ]
        but = f", but {', '.join(stand_ins)}" if stand_ins else ""
        return f"{fingerprint.get('source', 'from')} on {device}{_date(fingerprint)}{but}"
    of = f"{began['model']} on " if fingerprint.get("way") in (OTHER_MODEL, OTHER_CACHE) else ""
    cache = ", with another type of K and V" if fingerprint.get("way") == OTHER_CACHE else ""
    return f"derived for {device} from {of}{began.get('device')}{_date(began)}{cache}"


def _date(fingerprint: Mapping[str, Any]) -> str:
    date = fingerprint.get("date") or str(fingerprint.get("profiled_at", ""))[:10]
    return f", {date}" if date else ""


def _software(name: str | None, fingerprint: Mapping[str, Any]) -> str:
    if SYSTEM in fingerprint:
        whole = f"whole iterations of {fingerprint[SYSTEM]}, its software included"
        taken = f": {fingerprint[NAME]} (cost.iterations=null: none)" if NAME in fingerprint else ""
        return whole + taken
    if name is not None:
        return f"software time of {name}"
    return (
        "software time fitted on logs"
        if "software_fitted_on" in fingerprint
        else "software time as configured"
    )


def tested(cost: CostModel, model: ModelSpec, server: ServerSpec) -> str:
    """How far off such costs were: of a measured profile on batches that it had not seen, else on
    profiles left out, which are of plain models.
    """
    fingerprint = cost.fingerprint or {}
    if fingerprint and "from" not in fingerprint:
        if "tested" in fingerprint:
            return str(fingerprint["tested"])
        if not cost.fit:
            return NOT_TESTED
        error, num_batches = cost.fit["median_error"], cost.fit["num_batches"]
        return f"{100 * error:.1f}% (median) in {num_batches} decode batches"
    if not fingerprint and not (cost.provenance and model.is_plain):
        return NOT_TESTED
    return left_out(fingerprint.get("way", OTHER_GPU) if fingerprint else ROOFLINE, server)


def left_out(way: str, server: ServerSpec) -> str:
    """The errors of whole runs by this way, on one GPU or on several; for this GPU if it was
    tested, else for all.
    """
    rows = [row for row in table() if row["way"] == way and row["source_by"] in (SHIPPED, "")]
    rows = [row for row in rows if (row["num_gpus"] == "1") == (server.num_gpus == 1)]
    here = [row for row in rows if row["gpu"] == server.gpu.name]
    if not rows:
        return NOT_TESTED
    many = "on one GPU" if server.num_gpus == 1 else "on several GPUs"
    chosen, whose = (
        (here, f"profiles of {server.gpu.name} {many}") if here else (rows, f"profiles {many}")
    )
    reported = []
    for name, column in WHOLE_RUNS.items():
        errors = [abs(float(row[column])) for row in chosen]
        reported.append(f"{name} {median(errors):.0f}% (largest {max(errors):.0f}%)")
    return f"{', '.join(reported)} in whole runs of {len(chosen)} {whose} left out (median)"


@cache
def table() -> list[dict[str, str]]:
    if not TESTED.is_file():
        return []
    with TESTED.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


if TYPE_CHECKING:
    import pandas as pd


def sessions(table: "pd.DataFrame", session: Any) -> "pd.DataFrame":
    """One row per session that had a request answered; table: of requests; session: the session of
    each request id.
    """
    table = table.assign(
        session=session[table["request_id"]], ttft_s=table["first_token_s"] - table["arrival_s"]
    )
    return table.groupby("session", as_index=False).agg(
        requests=("request_id", "size"),
        output_tokens=("output_len", "sum"),
        start_s=("arrival_s", "min"),
        end_s=("finish_s", "max"),
        ttft_s_mean=("ttft_s", "mean"),
    )


def flat(summary: Mapping[str, Any]) -> dict[str, Any]:
    """A summary as one row; nested keys are joined by an underscore, keys of the run keep their
    names.
    """
    return {
        **summary[RUN],
        **dict(_joined("", {k: v for k, v in summary.items() if k not in (RUN, *LEFT_OUT)})),
    }


def merge_axes(axes: Sequence[str], row: Mapping[str, Any]) -> dict[str, Any]:
    """The row, renamed where an axis has the same name: `policy` is the option, policy_in_full all
    its parameters.
    """
    return {f"{key}_in_full" if key in axes else key: value for key, value in row.items()}


def _joined(before: str, values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    row: list[tuple[str, Any]] = []
    for key, value in values.items():
        row += (
            _joined(f"{before}{key}_", value)
            if isinstance(value, Mapping)
            else [(f"{before}{key}", value)]
        )
    return row
