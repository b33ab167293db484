"""Speculative decoding under memory pressure: where it stops helping, and what its memory costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from testbed.experiments.paper.studies.study import Finding, Row, Study, Task, reported
from testbed.experiments.runs.run_store import Measured, RunStore

NONE = "none"
COUNTED, IGNORED = "counted", "ignored"
KEYS = ["drafter", "acceptance", "num_drafts", "rate"]


@dataclass(kw_only=True)
class Speculating(Study):
    """A run without drafts for each request rate; and for each drafter, acceptance, number of
    drafts and rate one that counts the drafter's memory, and one that ignores it.
    """

    drafters: Mapping[str, Sequence[str]]
    acceptances: Sequence[float]
    num_drafts: Sequence[int]
    rates: Sequence[float]

    def tasks(self, num_seeds: int | None) -> list[Task]:
        label = "{study.name} without drafts, {rate:g} req/s"
        plain = self.each(label, self.plain, rate=self.rates)
        label = "{study.name} {drafter}, {acceptance:g}, {num_drafts} drafts, {rate:g} req/s"
        return plain + self.each(
            f"{label}, memory {{memory}}",
            self.speculating,
            drafter=self.drafters,
            acceptance=self.acceptances,
            num_drafts=self.num_drafts,
            rate=self.rates,
            memory=(COUNTED, IGNORED),
        )

    def plain(self, store: RunStore, rate: float) -> list[Row]:
        """The simulation of a rate without drafts."""
        measured = store.measure(self.common, {"arrivals.rate": rate})
        row = {"drafter": NONE, "acceptance": 0.0, "num_drafts": 0, "rate": rate, "memory": COUNTED}
        return [row | measures(measured)]

    def speculating(
        self,
        store: RunStore,
        drafter: str,
        acceptance: float,
        num_drafts: int,
        rate: float,
        memory: str,
    ) -> list[Row]:
        """One simulation with drafts."""
        values = {
            "arrivals.rate": rate,
            "speculation.num_drafts": num_drafts,
            "speculation.acceptance.rate": acceptance,
            "speculation.takes_memory": memory == COUNTED,
        }
        measured = store.measure((*self.common, *self.drafters[drafter]), values)
        row = {"drafter": drafter, "acceptance": acceptance, "num_drafts": num_drafts}
        return [row | {"rate": rate, "memory": memory} | measures(measured)]

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        speeds = speed_ups(table)
        counted = speeds[speeds["memory"] == COUNTED]
        best = counted.groupby(["drafter", "acceptance", "rate"], sort=False)["speed_up"].max()
        of_rate, system = best.reset_index(), "{drafter}, {acceptance:g}"
        columns = {"speed_up": "speed-up"}
        findings = reported(self.name, of_rate, "{rate:g} req/s", system, columns)
        for drafter, errors in errors_without_memory(table).groupby("drafter", sort=False):
            findings += [
                Finding(
                    figure=self.name,
                    setting="all",
                    system=str(drafter),
                    quantity=f"largest error of the {name}",
                    simulated=worst,
                )
                for name, worst in _largest(errors).items()
            ]
        return findings


def measures(measured: Measured) -> Row:
    """Latency (s/token), output tokens/s, batch and preemptions of a run."""
    summary, run = measured
    return {
        "latency_s": summary["normalized_latency_s_per_token"]["mean"],
        "tokens_per_s": summary["throughput"]["output_tokens_per_s"],
        "batch": summary["batch"]["mean_over_time"],
        "preemptions": summary["preemptions"]["recompute"],
        "run": run,
    }


def speed_ups(table: pd.DataFrame) -> pd.DataFrame:
    """The rows with drafts, and `speed_up`: the mean latency a token without drafts over theirs."""
    plain = table[table["drafter"] == NONE].set_index("rate")["latency_s"]
    drafting = table[table["drafter"] != NONE]
    return drafting.assign(speed_up=drafting["rate"].map(plain) / drafting["latency_s"])


def errors_without_memory(table: pd.DataFrame) -> pd.DataFrame:
    """Effects of ignoring the drafter's memory: the relative error of batch and tokens/s, and the
    number of preemptions that are missed.
    """
    wide = table[table["drafter"] != NONE].pivot_table(
        index=KEYS, columns="memory", values=["batch", "tokens_per_s", "preemptions"], sort=False
    )
    if IGNORED not in wide.columns.get_level_values("memory"):
        return pd.DataFrame(columns=[*KEYS, "batch", "throughput", "preemptions missed"])
    counted, ignored = wide.xs(COUNTED, axis=1, level=1), wide.xs(IGNORED, axis=1, level=1)
    errors = {
        "batch": ignored["batch"] / counted["batch"] - 1,
        "throughput": ignored["tokens_per_s"] / counted["tokens_per_s"] - 1,
        "preemptions missed": counted["preemptions"] - ignored["preemptions"],
    }
    return pd.DataFrame(errors).reset_index()


def _largest(errors: pd.DataFrame) -> dict[str, float]:
    """The error of each quantity that is furthest from zero."""
    names = ("batch", "throughput", "preemptions missed")
    return {name: float(errors[name].loc[errors[name].abs().idxmax()]) for name in names}
