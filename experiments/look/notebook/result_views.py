"""Views and files of a `testbed.Result`; the front end finds these functions by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from testbed.core.errors import InputError
from testbed.experiments.look.compare.finished_run import FinishedRun
from testbed.experiments.look.compare.run_comparison import compare as compared
from testbed.experiments.look.compare.run_comparison import tidy
from testbed.experiments.look.compare.tables import compare_page
from testbed.experiments.look.memory_map import map_page
from testbed.experiments.look.pages.page import whole_page
from testbed.experiments.look.report.folder_page import one_run
from testbed.experiments.look.timeline.chrome_trace import trace_of, write_trace
from testbed.experiments.runs import run_folder
from testbed.experiments.runs.part_words import part_words
from testbed.experiments.runs.summary_table import summary_table
from testbed.experiments.runs.whole_files import write_text

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from testbed.run.result import Result

HEIGHT_PX = 640
WIDTH = 120


@dataclass(frozen=True)
class Page:
    """A self-contained page, which a notebook shows in a frame.

    table: the numbers of a comparison; None for other pages.
    """

    html: str
    table: "pd.DataFrame | None" = None

    def save(self, path: str | Path) -> Path:
        """Write the page; returns the path."""
        write_text(Path(path), self.html)
        return Path(path)

    def _repr_html_(self) -> str:
        frame = f'style="width: 100%; height: {HEIGHT_PX}px; border: 0"'
        return f'<iframe title="testbed" {frame} srcdoc="{escape(self.html)}"></iframe>'


def draw(result: "Result") -> "Figure":
    """Draw the memory, the batch and the latencies of a run."""
    from testbed.experiments.look.plots import figure_of
    from testbed.experiments.look.run_charts import run_charts

    return figure_of(run_charts(result.requests, result.iterations, result.num_slots), columns=3)


def draw_sweep(
    axes: "pd.DataFrame", rows: Sequence[dict[str, Any]], metrics: Sequence[str]
) -> "Figure":
    """Draw runs over the axis that is a number with the most values."""
    from testbed.experiments.look.plots import figure_of
    from testbed.experiments.runs.sweep_table import sweep_charts

    charts = sweep_charts(axes, rows, metrics)
    if not charts:
        raise InputError(
            key="plot",
            problem="the sweep has no axis of three numbers or more",
            remedy="give one, such as rate=[1, 2, 4]",
        )
    return figure_of(charts)


def show(summary: Mapping[str, Any]) -> str:
    """A summary as the text that `testbed run` prints."""
    text = StringIO()
    # In Jupyter, rich would show the output in the notebook and leave the file empty.
    console = Console(file=text, width=WIDTH, force_jupyter=False, markup=False, emoji=False)
    console.print(summary_table(dict(summary)))
    return text.getvalue()


def html(result: "Result") -> str:
    """The card of a run, as on the page of `testbed report`."""
    policy = part_words(str(result.summary["run"]["policy"]))
    card = one_run(_finished("run", result), policy[0].upper() + policy[1:], alone=True)
    return Page(whole_page(title="Run", parts=[card]))._repr_html_()


def save(result: "Result", folder: Path) -> Path:
    """Write the run folder."""
    run_folder.save(result, folder)
    return folder


def timeline(result: "Result", file: Path, start_s: float, stop_s: float | None) -> Path:
    """Simulate the run again and write its trace for Perfetto."""
    trace, _ = trace_of(result.setup.config, start_s, stop_s)
    write_trace(file, trace)
    return file


def memory_map(result: "Result", start_s: float, stop_s: float | None, engine: int | None) -> Page:
    """Simulate the run again with a traced pool; returns the interactive page."""
    config = result.setup.config
    trace = map_page.retrace(config, start_s, stop_s, engine, result.summary)
    return Page(map_page.page(trace, map_page.title_of(trace, config, engine)))


def compare(results: "Mapping[str, Result]") -> Page:
    """The comparison of results by name."""
    comparison = compared([_finished(name, result) for name, result in results.items()])
    return Page(compare_page(comparison), tidy(comparison))


def _finished(name: str, result: "Result") -> FinishedRun:
    return FinishedRun(
        name=name,
        folder=None,
        config=result.setup.config.values,
        summary=result.summary,
        requests=result.requests,
        spans=result.iterations,
    )
