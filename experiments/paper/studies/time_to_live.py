"""Sessions whose answered requests keep their slots for a time, compared with orders of eviction and of service."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pandas as pd

from testbed.experiments.paper.studies.open_sessions import OpenSessions, measures, reported
from testbed.experiments.paper.studies.study import Finding, Row, Task
from testbed.experiments.runs.run_store import RunStore
from testbed.tables import sessions

SYSTEM = "time to live"
COLUMNS = {"mean_job_s": "mean job time (s)", "found_percent": "blocks found (%)"}


@dataclass(kw_only=True)
class TimeToLive(OpenSessions):
    """One run for each time to live, and one for each of the other systems.

    A job is a session: from the arrival of its first request to its last answer.
    """

    times_s: Sequence[float]
    systems: Mapping[str, Sequence[str]]

    def tasks(self, num_seeds: int | None) -> list[Task]:
        runs = [(SYSTEM, time_s) for time_s in self.times_s] + [(system, None) for system in self.systems]
        return [
            Task(f"{self.name} {system} {time_s or ''}", partial(self.served, system=system, time_s=time_s))
            for system, time_s in runs
        ]

    def served(self, store: RunStore, system: str, time_s: float | None) -> list[Row]:
        """One simulation; times in seconds."""
        words = self.systems[system] if time_s is None else ("scheduler=time_to_live",)
        config = self.config(store, words, {} if time_s is None else {"scheduler.time_to_live_s": time_s})
        row = measures(store.measured(config))
        requests = pd.read_csv(store.folder / row["run"] / "requests.csv")
        jobs = sessions(requests, requests.set_index("request_id")["session"])
        jobs_s = jobs["end_s"] - jobs["start_s"]
        times = {"mean_job_s": jobs_s.mean(), "p90_job_s": jobs_s.quantile(0.9)}
        return [{"system": system, "time_to_live_s": time_s, **times, **row}]

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        settings = table["time_to_live_s"].map("{:g} s".format).replace("nan s", "")
        return reported(self.name, table, settings, "system", COLUMNS)
