"""A run in words for the terminal and for pages: from the part `run` of its summary."""

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from testbed.experiments.runs.part_words import part_words
from testbed.experiments.runs.quantities import number
from testbed.run.summaries import HANDOVERS, RUN, origin_of, source_of_costs

SERVED = "model", "server", "num_gpus"
FIRST_TOKEN = (
    "the prefill engine gives the first token, before the hand-over, whose time is in one gap of "
    "each answer (ITL; beyond its p99 if answers have over 100 tokens), not in TTFT (behind vLLM's "
    "proxy the decode engine gives it: TTFT has both)"
)
AHEAD = "AsyncVllmV1"  # a scheduler whose next plan is made while an iteration runs
ASSUMED = "handover.bandwidth is assumed, not measured"
GIGA = 1e9
ALIKE = 1.01  # pools of one memory in whole blocks of two sizes


def run_words(run: Mapping[str, Any]) -> dict[str, str]:
    """The parts of a run in a few words, by name."""
    is_layered = run.get("slot_layers") == 1
    size = f"{run['pool_slots']:,} {'slots of one layer' if is_layered else 'tokens'}"
    if run["pool_blocks"]:
        size += f", {run['pool_blocks']:,} blocks of {run['block_size']} tokens"
    return {
        "model, server": f"{run['model']} on {run['num_gpus']} x {run['gpu']} ({run['server']})",
        "KV pool": f"{size}, {number(run['pool_gib'])} GiB",
        **_vllms_lines(run),
        **_fleet(run),
        "policy": part_words(run["policy"]),
        "scheduler": part_words(f"{run['scheduler']}, {run['preemption']}"),
        **_speculation(run),
        **({"reads the future": run["future_read"]} if run.get("future_read") else {}),
        "costs": source_of_costs(run["cost"]),
        "workload": part_words(f"{run['trace']}, {run['arrivals']}, seed {run['seed']}"),
    }


def _vllms_lines(run: Mapping[str, Any]) -> dict[str, str]:
    if "kv_cache_tokens" not in run:
        return {}
    from testbed.vllm.pages import logged_lines  # of few runs

    numbers = run["kv_cache_tokens"], run["max_model_len"], run["max_concurrency"]
    return {"vLLM's log": "; ".join(logged_lines(*numbers))}


def _speculation(run: Mapping[str, Any]) -> dict[str, str]:
    if "speculation" not in run:
        return {}
    return {"speculation": f"{part_words(run['speculation'])}; {run['draft_cost']}"}


def _fleet(run: Mapping[str, Any]) -> dict[str, str]:
    """The engines, router, faults, shared tiers and other servers of a fleet; empty for one."""
    if "replicas" not in run:
        return {}
    faults = f"; {run['faults']}" if "faults" in run else ""
    split = ""
    if "prefill_replicas" in run:
        handover = part_words(run["handover"])
        split = f"; {run['prefill_replicas']} prefill for the others, {handover}; {FIRST_TOKEN}"
    tiers = f"; all share {run['shared_tiers']}" if "shared_tiers" in run else ""
    others = {"other servers": run["servers"]} if "servers" in run else {}
    return {
        "engines": f"{run['replicas']} behind {part_words(run['router'])}{split}{tiers}{faults}",
        **others,
    }


def future_read_by(summary: Mapping[str, Any]) -> str:
    """Values of the future that a run reads, in words; empty if it reads nothing."""
    return summary[RUN].get("future_read") or ""


def remark_on_first_tokens(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The meaning of TTFT in runs with prefill apart, if there are any among these summaries, and
    the times of their hand-overs.
    """
    are_apart = any("prefill_replicas" in summary[RUN] for summary in runs)
    return [first_tokens(runs)] if are_apart else []


def first_tokens(runs: Sequence[Mapping[str, Any]]) -> str:
    """The meaning of TTFT in these runs with prefill apart, and the times of their hand-overs."""
    return f"prefill apart: {'; '.join([FIRST_TOKEN, *handover_times(runs)])}"


def handover_times(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The times of hand-overs by the bandwidth of their links; nothing without any."""
    by_link = dict[float, list[Mapping[str, float]]]()
    for summary in runs:
        if times := summary.get(HANDOVERS):
            by_link.setdefault(times["bandwidth"], []).append(times)
    means = [
        f"{_range('mean_s', of)} s (p99 {max(times['p99_s'] for times in of):.2g} s), "
        f"{_range('link_s', of)} s of it on {link / GIGA:g} "
        "GB/s, which prompts that end together share, and the rest until the decode engine takes "
        "it over"
        for link, of in by_link.items()
    ]
    return [f"a hand-over takes on average {'; '.join(means)} ({ASSUMED})"] if means else []


def _range(name: str, times: Sequence[Mapping[str, float]]) -> str:
    """The least and the largest of these times, or what both are as text."""
    values = [of_run[name] for of_run in times]
    ends = (f"{end:.2g}" for end in (min(values), max(values)))
    return " to ".join(dict.fromkeys(ends))


def remark_on_pools(runs: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A remark if runs on one server have pools of unlike sizes and unlike blocks, as a number of
    blocks makes them; runs: summaries by name.
    """
    parts = {name: summary[RUN] for name, summary in runs.items()}
    servers = {tuple(part[key] for key in SERVED) for part in parts.values()}
    sizes = {part["block_size"] for part in parts.values()}
    pools = {name: part["pool_gib"] for name, part in parts.items()}
    if len(servers) == 1 < len(sizes) and max(pools.values()) > ALIKE * min(pools.values()):
        texts = ", ".join(f"{name} {number(size)} GiB" for name, size in pools.items())
        yield (
            f"the pools have unlike memory ({texts}), since a number of blocks gives them and the "
            "blocks differ: give server.kv_memory_gib for equal memory"
        )


def remark_on_planning(runs: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """`remark_on_schedulers` of runs; runs: summaries by name."""
    parts = {name: summary[RUN] for name, summary in runs.items()}
    yield from remark_on_schedulers(
        {name: part["scheduler"].partition("(")[0] for name, part in parts.items()},
        {name for name, part in parts.items() if "speculation" in part},
    )


def remark_on_schedulers(schedulers: Mapping[str, str], drafting: Container[str]) -> Iterator[str]:
    """A remark if servers with drafts lack the asynchronous scheduling that others have.

    schedulers: names of classes by server. drafting: the servers that have drafts.
    """
    ahead = [name for name, of_it in schedulers.items() if of_it.endswith(AHEAD)]
    waiting = [name for name in schedulers if name not in ahead and name in drafting]
    if waiting and ahead:
        yield (
            f"asynchronous scheduling is on in {', '.join(ahead)} and off in {', '.join(waiting)}, "
            "as vLLM turns it off if the CPU looks drafts up: the differences, of TTFT too, are of "
            "both (a server without drafts and with --no-async-scheduling shows those of the "
            "drafts alone)"
        )


def remark_on_ways(runs: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A remark if the costs of some runs were measured and those of others derived or computed, or
    derived from another profile or for another GPU; runs: simulated summaries by name.
    """
    yield from remark_on_origins({name: origin_of(summary) for name, summary in runs.items()})


def remark_on_origins(origins: Mapping[str, str]) -> Iterator[str]:
    """A remark if runs of these names have costs of several origins (`origin_of`)."""
    if len(set(origins.values())) > 1:
        names = "; ".join(
            f"{origin}: {', '.join(name for name, other in origins.items() if other == origin)}"
            for origin in dict.fromkeys(origins.values())
        )
        yield (
            f"the costs are of different origins ({names}), so that their errors are part of the "
            "differences"
        )


def way_of(summary: Mapping[str, Any]) -> str:
    """The derivation of a run's costs from measurements."""
    return re.split(" for | on |, ", origin_of(summary))[0]
