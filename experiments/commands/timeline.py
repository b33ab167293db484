"""`testbed timeline`: a run as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing."""

import json
from pathlib import Path

from experiments.commands.arguments.timeline import NAME, parser
from experiments.commands.console import wide_console
from experiments.commands.show_memory import run_config
from experiments.runs.build import build
from experiments.runs.whole_files import write_text
from experiments.timeline.chrome_trace import chrome_trace
from experiments.timeline.phases import PhaseRecorder
from testbed.core.errors import InputError
from testbed.core.request import PS
from testbed.cost.model import UNBOUNDED
from testbed.sim.simulation import simulate


def main(argv: list[str]) -> None:
    """Simulate the run of a folder again, and write what every request, the GPU and the pool did."""
    options = parser().parse_args(argv)
    if options.stop is not None and options.stop <= options.start:
        raise InputError(f"--from {options.start:g} --to {options.stop:g}: nothing lies between")
    trace = timeline(options.run, options.start, options.stop)
    out = options.out or options.run / NAME
    write_text(out, json.dumps(trace, separators=(",", ":")) + "\n")
    events = len(trace["traceEvents"])
    wide_console().print(f"{out}: {events:,} events; open it at ui.perfetto.dev or chrome://tracing", highlight=False)


def timeline(folder: Path, start_s: float = 0.0, stop_s: float | None = None) -> dict[str, object]:
    """The trace of a run folder's config, from start_s to stop_s or the end, in seconds."""
    setup = build(run_config(folder))
    start_ps, stop_ps = round(start_s * PS), UNBOUNDED if stop_s is None else round(stop_s * PS)
    end_ps = min(stop_ps, setup.window_ps[1] if setup.window_ps else UNBOUNDED)
    recorder = PhaseRecorder()
    simulate(
        setup.workload, setup.scheduler, setup.cost, setup.model.max_len, stop_ps=end_ps,
        recorder=recorder, fast_forward=setup.fast_forward, beams=setup.beams,
    )  # fmt: skip
    if start_ps >= recorder.end_ps:
        raise InputError(f"nothing to show from {start_s:g} s on: the run ends at {recorder.end_ps / PS:g} s")
    spans = recorder.spans.columns()
    return chrome_trace(
        recorder.lives(setup.workload), spans, setup.pool.num_slots, setup.description, start_ps, stop_ps
    )
