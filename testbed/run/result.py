"""The result of a simulated run: its summary, its tables, and the front end with the pages and
files that show them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from testbed.core.errors import InputError
from testbed.engine.recorder import Recorder, request_columns, span_columns, with_identity
from testbed.run.build import Setup
from testbed.run.config import RunConfig

if TYPE_CHECKING:
    import pandas as pd

    from testbed.study.scores import Score


class Views(Protocol):
    """The pages, files, figure and texts of results: a module of the package of the front end."""

    def save(self, result: "Result", folder: Path) -> Path:
        """Write the run folder."""

    def timeline(self, result: "Result", file: Path, start_s: float, stop_s: float | None) -> Path:
        """Simulate again and write the trace."""

    def memory_map(
        self, result: "Result", start_s: float, stop_s: float | None, engine: int | None
    ) -> Any:
        """The interactive page of the memory."""

    def compare(self, results: Mapping[str, "Result"]) -> Any:
        """The page that compares results by name."""

    def draw(self, result: "Result") -> Any:
        """The figure of a run."""

    def draw_sweep(
        self, axes: "pd.DataFrame", rows: Sequence[dict[str, Any]], metrics: Sequence[str]
    ) -> Any:
        """The figure of a sweep: a row of both for each run, as flat summaries."""

    def html(self, result: "Result") -> str:
        """The card of a run for a notebook."""

    def show(self, summary: Mapping[str, Any]) -> str:
        """The table of a summary for a terminal."""


class FrontEnd(Protocol):
    """A front end turns names into configurations and keeps run folders: the package that declares
    `testbed.front_end`.
    """

    def configure(self, overrides: Sequence[str], options: Mapping[str, Any]) -> RunConfig:
        """The configuration of words of the command line and options by name."""

    def note_displaced(self, overrides: Sequence[str], options: Mapping[str, Any]) -> None:
        """Print a note for each value that another one displaces: the last word of a key counts,
        and an option more than a word.
        """

    def noted_once(
        self, overrides: Sequence[str], options: Mapping[str, Any]
    ) -> tuple[Sequence[str], dict[str, Any]]:
        """The overrides and options of many runs, without what others displace and with those of a
        server's command; all notes on both are printed here, and not by the runs.
        """

    def check_possible(self, config: RunConfig, share: float) -> None:
        """Raise NotSustained if arithmetic says that no rate keeps the objectives for this share of
        the requests.
        """

    def with_one_source(
        self,
        overrides: Sequence[str],
        options: Mapping[str, Any],
        points: Sequence[Mapping[str, Any]],
    ) -> Sequence[str]:
        """The overrides that give runs which are compared costs of one source."""

    def measure(self, config: RunConfig, folder: Path) -> dict[str, Any]:
        """The summary of a run, from its folder below `folder` if it is complete there."""

    def score(self, policy: Any, suite: str, rules: str) -> "Score":
        """See `testbed.arena.score`."""

    @property
    def views(self) -> Views:
        """The views of results."""


@cache
def front_end() -> FrontEnd:
    """The front end of this installation; looking for it reads what every package declares."""
    front_ends = entry_points(group="testbed.front_end")
    if not front_ends:
        raise InputError(
            key="testbed",
            problem="is not installed here, so no choice has a name",
            remedy="pip install -e .",
        )
    front: FrontEnd = next(iter(front_ends)).load()()
    return front


@dataclass(frozen=True)
class Result:
    """The result of a run.

    Attributes:
        summary: that of summary.json (units: COLUMNS.md of any run folder).
        recorder: requests and spans as they were recorded; the data frames are made of it.
        setup: the objects of the run: its workload, policy, scheduler and cost model.
        wall_s: seconds that the event loop alone took.
    """

    summary: dict[str, Any]
    recorder: Recorder
    setup: Setup
    wall_s: float

    @property
    def num_slots(self) -> int:
        """Slots of the KV pool, or of those of all engines together."""
        return self.setup.num_slots

    @cached_property
    def requests(self) -> "pd.DataFrame":
        """One row a request, in order of arrival: times and latencies in s, lengths in tokens."""
        import pandas as pd  # takes a third of a second, which most runs do not need

        return pd.DataFrame(with_identity(request_columns(self.recorder), self.setup.workload.rows))

    @cached_property
    def iterations(self) -> "pd.DataFrame":
        """One row a span of identical iterations: times in s, memory in slots as means over the
        span.
        """
        import pandas as pd

        return pd.DataFrame(span_columns(self.recorder))

    @cached_property
    def sessions(self) -> "pd.DataFrame":
        """One row a session: its requests, output tokens of all their sequences, start and end (s),
        and mean TTFT (s) of its requests.

        Raises InputError for a workload whose requests belong to no sessions.
        """
        session = self.setup.workload.rows.sessions
        if session is None:
            raise InputError(
                key="sessions",
                problem=(
                    "this workload has none (a CSV may have a column session; trace=agent_sessions)"
                ),
            )
        from testbed.run.sessions import sessions

        return sessions(self.requests, session)

    def save(self, folder: str | Path) -> Path:
        """Write the run folder that `testbed run` would write; returns its path.

        Raises InputError for a part that a config cannot name, and for a folder with another run.

        Args:
            folder: where; made if it is missing.
        """
        return front_end().views.save(self, Path(folder))

    def timeline(self, file: str | Path, start_s: float = 0.0, stop_s: float | None = None) -> Path:
        """Simulate again and write a trace for Perfetto.

        Args:
            file: its path; packed, if the name ends in .gz.
            start_s: the first second of the run that it shows.
            stop_s: the last one; None: the end.
        """
        return front_end().views.timeline(self, Path(file), start_s, stop_s)

    def memory_map(
        self, start_s: float = 0.0, stop_s: float | None = None, engine: int | None = None
    ) -> Any:
        """The page of `testbed show memory`: a notebook shows it, `.save(path)` writes it.

        Args:
            start_s: the first second of the run that it shows.
            stop_s: the last one; None: the end.
            engine: whose memory, of several replicas; from 0.
        """
        return front_end().views.memory_map(self, start_s, stop_s, engine)

    def compare(self, other: "Result", names: tuple[str, str] = ("this", "other")) -> Any:
        """The page of `testbed compare`: a notebook shows it, `.save(path)` writes it, `.table` is
        its data frame.

        Raises InputError for names that are not two different ones.

        Args:
            other: the run to compare with.
            names: what the page calls this run and the other.
        """
        if len(names) != 2 or len(set(names)) != 2:
            raise InputError(key="names", value=names, problem="must be two different names")
        return front_end().views.compare(dict(zip(names, (self, other), strict=True)))

    def _repr_html_(self) -> str:
        return front_end().views.html(self)

    def plot(self) -> Any:
        """A matplotlib figure: memory by kind and batch over time, and the share of requests by
        latency.
        """
        return front_end().views.draw(self)

    def __repr__(self) -> str:
        return front_end().views.show(self.summary)
