"""One cache for all nodes of a fleet, or one for each."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from testbed.core.specs import GIB
from testbed.experiments.paper.studies.open_sessions import measures
from testbed.experiments.paper.studies.study import Finding, Row, Study, Task, reported
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.run_store import RunStore

MOONCAKE = "mooncake"
LOCAL, GLOBAL = "local", "global"
RATIO = "global over local hits"


@dataclass(kw_only=True)
class GlobalCache(Study):
    """A run for each router and number of nodes, with the tier `dram` in each node (local) and with
    one of the same size for all together (global).

    tokens_per_node, bandwidth_per_node (bytes/s each way): of the tier.
    """

    tokens_per_node: int
    bandwidth_per_node: float
    nodes: Sequence[int]
    routers: Mapping[str, Sequence[str]]

    @property
    def replays(self) -> Collection[str]:
        return (MOONCAKE,)

    def tasks(self, num_seeds: int | None) -> list[Task]:
        label = "{study.name} {router}, {cache}, {nodes} nodes"
        axes = {"router": self.routers, "nodes": self.nodes, "cache": (LOCAL, GLOBAL)}
        return self.each(label, self.served, **axes)

    def served(self, store: RunStore, router: str, nodes: int, cache: str) -> list[Row]:
        """One simulation; times in seconds."""
        path = self.given_files(store)[MOONCAKE]
        words = [*self.common, *self.routers[router]]
        fleet = {"trace.path": path, "replicas": nodes}
        token_bytes = configured(words, fleet).model.kv_bytes_per_token
        shares = nodes if cache == GLOBAL else 1
        tier = {
            "size_gib": shares * self.tokens_per_node * token_bytes / GIB,
            "read_bandwidth": shares * self.bandwidth_per_node,
            "write_bandwidth": shares * self.bandwidth_per_node,
            "shared": cache == GLOBAL,
        }
        values = {f"server.tiers.dram.{name}": value for name, value in tier.items()}
        config = configured(words, {**fleet, **values})
        row = {"router": router, "nodes": nodes, "cache": cache}
        return [row | measures(store.measured(config))]

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        return reported(self.name, ratios(table), "{nodes} nodes", "{router}", {"ratio": RATIO})


def ratios(table: pd.DataFrame) -> pd.DataFrame:
    """The hits of the global cache over those of the local ones: columns router, nodes, ratio."""
    hit_rates = table.pivot_table(
        index=["router", "nodes"], columns="cache", values="found_percent", sort=False
    )
    if {LOCAL, GLOBAL} - set(hit_rates):
        return pd.DataFrame(columns=["router", "nodes", "ratio"])
    return (hit_rates[GLOBAL] / hit_rates[LOCAL]).rename("ratio").reset_index()
