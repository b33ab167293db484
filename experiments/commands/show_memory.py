"""`testbed show-memory`: physical blocks over time, as a picture and as a page to click through."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from experiments.commands.arguments.show_memory import NAME, parser
from experiments.commands.console import wide_console
from experiments.paper.style import save
from experiments.runs.build import build
from experiments.runs.point import complete
from experiments.runs.whole_files import write_text
from testbed.core.errors import InputError
from testbed.core.request import PS
from testbed.cost.model import UNBOUNDED
from testbed.sim.memory_trace import MemoryTrace, trace_memory


def main(argv: list[str]) -> None:
    """Simulate the run of a folder again, watching its policy, and draw what it held."""
    arguments = parser().parse_args(argv)
    config = run_config(arguments.run)
    trace = retrace(config, arguments.start, arguments.stop)
    out = arguments.out or arguments.run
    out.mkdir(parents=True, exist_ok=True)
    console = wide_console()
    for path in write(trace, config, out):
        console.print(str(path), highlight=False)
    for remark in remarks(trace, complete(arguments.run) if ends_by_itself(arguments.stop, config) else None):
        console.print(remark, highlight=False)


def run_config(folder: Path) -> DictConfig:
    """The resolved config of a run folder."""
    path = folder / "config.yaml"
    if not path.is_file():
        raise InputError(f"{folder} is not a run folder: it has no config.yaml (testbed run leaves one)")
    try:
        config = OmegaConf.load(path)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    missing = {"model", "server", "policy", "scheduler", "trace", "arrivals", "cost"} - set(config)
    if not isinstance(config, DictConfig) or missing:
        raise InputError(f"{path} is not the config of a run: it lacks {', '.join(sorted(missing)) or 'a mapping'}")
    return config


def retrace(config: DictConfig, start_s: float, stop_s: float | None) -> MemoryTrace:
    """The run of a config from start_s to stop_s, or to where it ends or was stopped before."""
    if stop_s is not None and stop_s <= start_s:
        raise InputError(f"--from {start_s:g} --to {stop_s:g}: nothing lies between")
    setup = build(config)
    ends = [UNBOUNDED if stop_s is None else round(stop_s * PS), *(setup.window_ps or ())[1:]]
    trace = trace_memory(
        setup.workload, setup.scheduler, setup.cost, setup.model.max_len,
        start_ps=round(start_s * PS), stop_ps=min(ends), fast_forward=setup.fast_forward, beams=setup.beams,
    )  # fmt: skip
    if not trace.frames:
        raise InputError(f"nothing to draw from {start_s:g} s on: the run ends at {trace.end_ps / PS:g} s")
    return trace


def write(trace: MemoryTrace, config: DictConfig, out: Path) -> list[Path]:
    """Write the pictures and the page; their paths."""
    from experiments.memory_map.page import page
    from experiments.memory_map.picture import draw

    figure = draw(trace, title(trace, config))
    paths = [out / f"{NAME}{suffix}" for suffix in (".png", ".pdf", ".html")]
    for path in paths[:2]:
        save(figure, path)
    write_text(paths[2], page(trace, title(trace, config)))
    return paths


def ends_by_itself(stop_s: float | None, config: Any) -> bool:
    """Whether the picture ends where the run did."""
    return stop_s is None and config.get("window_s") is None


def remarks(trace: MemoryTrace, summary: dict[str, Any] | None) -> Iterator[str]:
    """What a reader of the picture should know; the summary is that of the folder."""
    if trace.num_states > len(trace.frames):
        yield f"{len(trace.frames):,} of {trace.num_states:,} states are drawn; --from and --to look closer"
    end_s = trace.end_ps / PS
    if summary and summary["simulated_s"] != end_s:
        yield (
            f"the run ended at {summary['simulated_s']:g} s and would now end at {end_s:g} s: code or inputs have "
            "changed since, and the picture shows the run as it would be now"
        )


def title(trace: MemoryTrace, config: Any) -> str:
    """Policy, model and pool."""
    policy = str(config.policy._target_).rpartition(".")[2]
    blocks = trace.num_slots // trace.block_size
    return f"{policy}, {config.model.name}: {blocks:,} blocks of {trace.block_size} slots"
