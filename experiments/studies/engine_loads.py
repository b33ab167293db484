"""Loads of ShareGPT served by the GPU engine, beside their simulation with a profile of that
machine.

    python -m testbed.experiments.studies.engine_loads --model llama-3.1-8b --out FOLDER

On a machine with a GPU it measures GPU and host (`testbed gpu calibrate --system engine`), serves
the loads with a scheduler that plans ahead and with one that does not, and simulates each by the
same words without `engine=gpu`. Nothing is fitted to a load. FOLDER keeps profile.json and a folder
for each run; what is there is not measured again, so that the same words print the table again,
also without a GPU.
"""

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pandas as pd
from cyclopts import App, Parameter

from testbed.core.errors import InputError
from testbed.core.request import PS
from testbed.cost.model import CostModel, read_work
from testbed.cost.sections import read_profile
from testbed.experiments.real.importers.known_shapes import gpu_of_device
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.whole_files import SUMMARY, write_json
from testbed.kernels import gpu_commands
from testbed.run.build import build
from testbed.run.machine import cost_of
from testbed.run.simulate import run
from testbed.traces.files import plain_or_packed

RATES, SECONDS, BLOCKS = (6.0, 12.0, 18.0), 20.0, 1024  # requests/s, of arrivals, of 16 tokens
SCHEDULERS = {"ahead": ("+system=vllm-v1",), "in turn": ()}
ON_GPU = ("engine=gpu",)
PROFILE = "profile.json"
TPOT, TTFT = 0.03, 0.10  # largest errors; of TTFT in the smallest load
PREEMPTIONS = 0.10, 5  # a share of those measured, or so many
RUN_S = 45.0  # no run begins with less left


class Load(NamedTuple):
    """A run: whether iterations are planned ahead, and requests a second."""

    planning: str
    rate: float

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"{self.planning.replace(' ', '-')}-{self.rate:g}"

    def words(self, common: Sequence[str]) -> list[str]:
        """Its words of `testbed run`, without the engine's and the costs'."""
        return [*SCHEDULERS[self.planning], *common, f"arrivals.rate={self.rate:g}"]


LOADS = [Load(planning, rate) for planning in SCHEDULERS for rate in RATES]


class Figures(NamedTuple):
    """Means and medians of a run, in seconds, and its preemptions."""

    tpot_s: float
    ttft_p50_s: float
    preemptions: int

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> "Figures":
        """The figures of a run's summary."""
        preemptions = sum(summary["preemptions"].values())
        return cls(summary["tpot_s"]["mean"], summary["ttft_s"]["p50"], preemptions)


def common_words(model: str, profile: Mapping[str, Any]) -> list[str]:
    """The words that all loads have in common; the server is the profile's GPU."""
    device = profile["fingerprint"]["device"]
    gpu = gpu_of_device(device)
    if gpu is None:
        raise InputError(key=device, problem="no GPU of that device ships")
    return [
        f"model={model}",
        f"server={gpu.name}",
        f"server.num_blocks={BLOCKS}",
        "~server.kv_memory_gib",
        "swap_space_gib=0",  # one sequence a request: it is computed again
        "trace=sharegpt",
        f"arrivals.duration_s={SECONDS:g}",
    ]


def calibrated(model: str, out: Path) -> Path:
    """The profile in the folder, which is measured now if it is not there."""
    path = out / PROFILE
    if not path.is_file():
        gpu_commands.calibrate([model], tp=1, out=path, engine=True)
    return path


def serve_loads(
    loads: Sequence[Load], common: Sequence[str], engine: Sequence[str], out: Path, end_s: float
) -> None:
    """Serve what the folder lacks, on graphs that are captured once. No run begins RUN_S before
    end_s, of the monotonic clock.
    """
    missing = [load for load in loads if not (out / load.folder / SUMMARY).is_file()]
    if not missing:
        return
    from testbed.kernels.engine.device_memory import free
    from testbed.kernels.engine.served_run import make_engine, on_the_device_of, serve_into

    free()  # what the calibration has left
    # The policy of this one has all blocks; that of vLLM keeps one
    first = make_engine(build(configured([*Load("in turn", RATES[0]).words(common), *engine])))
    for load in missing:
        if time.monotonic() > end_s - RUN_S:
            print(f"{load.folder}: no time is left (the same words go on)", flush=True)
            continue
        setup = build(configured([*load.words(common), *engine]))
        folder = out / load.folder
        folder.mkdir(parents=True, exist_ok=True)
        summary = serve_into(folder, setup, on_the_device_of(first, setup))
        write_json(folder / SUMMARY, summary)
        print(f"{load.folder}: {Figures.of(summary)}", flush=True)


def compared(
    loads: Sequence[Load], common: Sequence[str], profile: Path, out: Path
) -> Iterator[tuple[Load, Figures, Figures]]:
    """Each load that was served: measured, and simulated with the profile."""
    for load in loads:
        path = out / load.folder / SUMMARY
        if not path.is_file():
            continue
        costs = ["cost=profile", f"cost.path={profile}"]
        simulated = run(configured([*load.words(common), *costs])).summary
        write_json(out / load.folder / "simulated.json", simulated)
        yield load, Figures.of(json.loads(path.read_text(encoding="utf-8"))), Figures.of(simulated)


def computing(
    loads: Sequence[Load], common: Sequence[str], profile: Path, out: Path
) -> Iterator[str]:
    """The GPU's times, measured / by the profile, in Markdown: seconds of iterations with and
    without prompts. If the GPU waits for a prompt's launch, in turn, the measured ones have it.
    """
    yield "| planned | requests/s | decodes, s | with prompts, s |"
    yield "|---|---|---|---|"
    for load in loads:
        path = plain_or_packed(out / load.folder / "iterations.csv")
        if path is not None:
            words = [*load.words(common), "cost=profile", f"cost.path={profile}"]
            times = _computing_s(path, cost_of(configured(words)))
            cells = (f"{real:.3f} / {ours:.3f}, {ours / real - 1:+.1%}" for real, ours in times)
            yield f"| {load.planning} | {load.rate:g} | {' | '.join(cells)} |"


def _computing_s(path: Path, cost: CostModel) -> list[tuple[float, float]]:
    """Measured seconds and those of the cost model, of decodes alone and with prompts. On a CPU the
    durations are measured.
    """
    sums = {False: [0.0, 0.0], True: [0.0, 0.0]}
    for row in pd.read_csv(path).to_dict("records"):
        work = read_work({str(name): cell for name, cell in row.items()})
        kind = sums[bool(work.prefill)]
        kind[0] += float(row["gpu_s"] or row["duration_s"])
        kind[1] += cost.iteration(work) / PS
    return [(real, ours) for real, ours in sums.values()]


def table(rows: Sequence[tuple[Load, Figures, Figures]]) -> Iterator[str]:
    """Measured / simulated in Markdown, with the errors; bold is beyond its limit."""
    yield "| planned | requests/s | TPOT, ms | TTFT p50, ms | preemptions |"
    yield "|---|---|---|---|---|"
    for load, real, ours in rows:
        cells = (
            _times(real.tpot_s, ours.tpot_s, TPOT),
            _times(real.ttft_p50_s, ours.ttft_p50_s, TTFT if load.rate == RATES[0] else None),
            _counts(real.preemptions, ours.preemptions),
        )
        yield f"| {load.planning} | {load.rate:g} | {' | '.join(cells)} |"


def _times(real_s: float, ours_s: float, limit: float | None) -> str:
    error = ours_s / real_s - 1
    text = f"{1e3 * real_s:.2f} / {1e3 * ours_s:.2f}, {error:+.1%}"
    return text if limit is None or abs(error) <= limit else f"**{text}**"


def _counts(real: int, ours: int) -> str:
    share, least = PREEMPTIONS
    text = f"{real:,} / {ours:,}"
    return text if abs(ours - real) <= max(share * real, least) else f"**{text}**"


app = App(name="engine_loads", help=__doc__)


@app.default
def main(
    *,
    model: Annotated[str, Parameter(help="a model that ships")],
    out: Annotated[Path, Parameter(metavar="FOLDER", help="folder of profile and runs")],
    limit_s: Annotated[
        float, Parameter(metavar="S", help="seconds after which no run begins")
    ] = 530.0,
) -> None:
    """Measure what the folder lacks, and print the table."""
    begun_s = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    profile = calibrated(model, out)
    print(f"{time.monotonic() - begun_s:.0f} s: profile", flush=True)
    common = common_words(model, read_profile(profile))
    serve_loads(LOADS, common, ON_GPU, out, begun_s + limit_s)
    print(f"{time.monotonic() - begun_s:.0f} s: served", flush=True)
    print(*table(list(compared(LOADS, common, profile, out))), "", sep="\n")
    print(*computing(LOADS, common, profile, out), sep="\n")


if __name__ == "__main__":
    try:
        app()
    except InputError as error:
        sys.exit(f"error: {error}")
