"""The trace of a config's run, simulated again, as a file that Perfetto opens."""

import gzip
import json
from pathlib import Path
from typing import Any

from testbed.build import build
from testbed.config import RunConfig
from testbed.core.errors import InputError
from testbed.core.request import PS
from testbed.experiments.runs.whole_files import write_text, write_with
from testbed.experiments.timeline.chrome_trace import chrome_trace
from testbed.experiments.timeline.phases import PhaseRecorder
from testbed.sim.simulation import simulate


def trace_of(config: RunConfig, start_s: float = 0.0, stop_s: float | None = None) -> tuple[dict[str, Any], float]:
    """The trace from start_s to stop_s or the end of the run (s), and when the simulation ended (s)."""
    setup, recorder = build(config), PhaseRecorder()
    start_ps, stop_ps, end_ps = setup.part_ps(start_s, stop_s)
    simulate(
        setup.workload, setup.scheduler, setup.cost, setup.model.max_len, stop_ps=end_ps,
        recorder=recorder, fast_forward=setup.config.fast_forward, beams=setup.beams,
    )  # fmt: skip
    if start_ps >= recorder.end_ps:
        raise InputError(f"--from {start_s:g}: the run ends at {recorder.end_ps / PS:g} s, there is nothing to show")
    lives, spans = recorder.lives(setup.workload), recorder.spans.columns()
    what = (setup.pool.num_slots, setup.description, start_ps, stop_ps)
    return chrome_trace(lives, spans, *what), recorder.end_ps / PS


def write_trace(path: Path, trace: dict[str, Any]) -> None:
    """Write a trace; a name that ends in .gz is packed, which Perfetto opens too."""
    text = json.dumps(trace, separators=(",", ":")) + "\n"
    if path.suffix == ".gz":
        write_with(path, lambda temporary: temporary.write_bytes(gzip.compress(text.encode(), mtime=0)))
    else:
        write_text(path, text)
