"""The page of `testbed show-memory`: simulates a run again with a traced policy, and shows who owns its blocks."""

from collections.abc import Iterator
from typing import Any

from testbed.build import build
from testbed.config import RunConfig
from testbed.core.errors import InputError
from testbed.core.request import PS
from testbed.experiments.memory_map.encode import encode
from testbed.experiments.pages.page import render
from testbed.experiments.runs.run_folder import changed_since
from testbed.sim.memory_trace import MemoryTrace, trace_memory

SCRIPTS = ("replay", "blocks", "draw", "grid", "mapping", "details", "keys", "page")


def retrace(config: RunConfig, start_s: float, stop_s: float | None) -> MemoryTrace:
    """The memory trace of a config's run from start_s to stop_s, or to the run's end."""
    setup = build(config)
    start_ps, _, end_ps = setup.part_ps(start_s, stop_s)
    trace = trace_memory(
        setup.workload, setup.scheduler, setup.cost, setup.model.max_len,
        start_ps=start_ps, stop_ps=end_ps, fast_forward=setup.config.fast_forward, beams=setup.beams,
        pool=setup.pool,
    )  # fmt: skip
    if not trace.frames:
        raise InputError(f"--from {start_s:g}: the run ends at {trace.end_ps / PS:g} s, there is nothing to draw")
    return trace


def title_of(trace: MemoryTrace, config: RunConfig) -> str:
    """The policy, the model and the size of the pool."""
    policy, blocks = config.policy.name.rpartition(".")[2], trace.num_slots // trace.block_size
    of = " of one layer" if len(trace.parts) > 1 else ""
    return f"{policy}, {config.model.name}: {blocks:,} blocks of {trace.block_size} slots{of}"


def page(trace: MemoryTrace, title: str) -> str:
    """memory_map.html: one file with its data, style and script, which needs no network."""
    return render("memory_map/page/page.html", title=title, data=encode(trace), scripts=SCRIPTS)


def remarks(trace: MemoryTrace, summary: dict[str, Any] | None) -> Iterator[str]:
    """Remarks for the reader of the page; `summary` is the folder's."""
    if trace.num_states > len(trace.frames):
        yield f"{len(trace.frames):,} of {trace.num_states:,} states are drawn; --from and --to zoom in"
    yield from changed_since(summary, trace.end_ps / PS, "page")
