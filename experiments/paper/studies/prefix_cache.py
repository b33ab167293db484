"""Prefix caches beyond the paper: hit rate and throughput against cache size, for every eviction order."""

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

import hydra.utils
import pandas as pd
from omegaconf import DictConfig, OmegaConf

from experiments.paper.studies.study import Finding, Row, Study, Task
from experiments.runs.lab import Lab, composed
from experiments.runs.machine import make_cost, make_machine
from experiments.runs.make import make
from experiments.runs.workload import make_workload
from testbed.core.request import PS
from testbed.core.specs import GIB
from testbed.cost.model import CostModel, Work
from testbed.memory.prefix_cache.replay import prompts_of, replay

BELADY = "belady"


class PrefixCache(Study):
    """Hit rates come from the untimed replay, where Belady's order is a bound; throughput comes from timed runs.

    A timed run's pool is its cache: free, held and parked blocks together. All requests of the trace arrive by its own
    clock and are served to the end, so throughput is their number over the time that this takes. `traces` says what to
    do by name of trace: the one whose file is given, else the last.
    """

    def __init__(
        self,
        name: str,
        covers: Sequence[str],
        drawing: str,
        common: Sequence[str],
        orders: Sequence[str],
        traces: Mapping[str, Mapping[str, Any]],
    ) -> None:
        super().__init__(name, covers, drawing)
        self.common = tuple(common)
        self.orders = tuple(orders)
        self.traces = traces

    def tasks(self, num_seeds: int | None) -> list[Task]:
        steps = max(len(trace["timed_blocks"]) for trace in self.traces.values())
        timed = [(f"timed {i}", partial(self.timed, order=o, step=i)) for i in range(steps) for o in self.orders]
        replays = [("replay", partial(self.replayed, order=order)) for order in self.orders]
        return [Task(f"{self.name} {work.keywords['order']}, {what}", work) for what, work in [*timed, *replays]]

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        curves = table[table["kind"] == "replay"].pivot_table(index="num_blocks", columns="order", values="hit_rate")
        ahead = (curves.sub(curves[BELADY], axis=0) > 0).any()
        place = self.name, str(table["trace"].iloc[0])
        rates = [Finding(*place, order, "largest hit rate (%)", 100 * curves[order].max()) for order in curves.columns]
        bound = Finding(*place, BELADY, "no order beats it at any size", "yes" if not ahead.any() else "no")
        return [*rates, bound]

    def replayed(self, lab: Lab, order: str) -> list[Row]:
        """The curve of one order in untimed replay."""
        trace, config = self._config(lab, order)
        rows, block_size = make_workload(config).rows, int(config.policy.block_size)
        prices = PrefillPrices(make_cost(config, *make_machine(config)))
        prompt_lens = rows.prompt_len.tolist()
        prompts = list(prompts_of(rows, block_size))
        table = []
        for num_blocks in self.traces[trace]["replay_blocks"]:
            result = replay(prompts, num_blocks, hydra.utils.instantiate(config.policy.eviction))
            tokens = [hit * block_size for hit in result.hits]
            found = {
                "hit_rate": result.hit_rate,
                "token_hit_rate": sum(tokens) / sum(prompt_lens),
                "evictions": result.evictions,
                "saved_prefill_s": prices.saved_s(prompt_lens, tokens),
            }
            table.append({**place(trace, "replay", order, num_blocks, block_size), **found})
        return table

    def timed(self, lab: Lab, order: str, step: int) -> list[Row]:
        """One simulation, with the pool as large as the cache."""
        trace, config = self._config(lab, order)
        sizes = self.traces[trace]["timed_blocks"]
        if step >= len(sizes):
            return []
        block_size, model = int(config.policy.block_size), make(config.model)
        pool_bytes = (sizes[step] * block_size + 1) * model.kv_bytes_per_token
        OmegaConf.update(config, "server.kv_memory_gib", {model.name: pool_bytes / GIB}, force_add=True)
        summary, run = lab.measured(config)
        counts = summary["counters"]
        found = {
            "hit_rate": counts["hit_blocks"] / counts["blocks"],
            "token_hit_rate": counts["hit_tokens"] / counts["tokens"],
            "evictions": counts["evictions"],
            "requests_per_s": summary["throughput"]["requests_per_s"],
            "mean_ttft_s": summary["ttft_s"]["mean"],
            "run": run,
        }
        return [{**place(trace, "timed", order, sizes[step], block_size), **found}]

    def _config(self, lab: Lab, order: str) -> tuple[str, DictConfig]:
        """The trace's name, and the config of its runs with this order."""
        files = dict(lab.lengths)
        trace = next((name for name in self.traces if name in files), list(self.traces)[-1])
        overrides = (*self.common, *self.traces[trace]["overrides"], f"eviction@policy.eviction={order}")
        config = composed("run", overrides).copy()
        if trace in files:
            OmegaConf.update(config, "trace.path", files[trace])
        return trace, config


def place(trace: str, kind: str, order: str, num_blocks: int, block_size: int) -> Row:
    """Which point a row is of."""
    return {"trace": trace, "kind": kind, "order": order, "num_blocks": num_blocks, "block_size": block_size}


class PrefillPrices:
    """What prompts cost, each alone in one iteration; every price is asked for once."""

    def __init__(self, cost: CostModel) -> None:
        self._prices = cache(lambda new, stored: cost.iteration(Work(prefill=((new, stored),))))

    def saved_s(self, prompt_lens: Sequence[int], hit_tokens: Sequence[int]) -> float:
        """Seconds by which hits make these prompts faster; the last token of a prompt is always computed."""
        saved_ps = 0
        for prompt_len, hit in zip(prompt_lens, hit_tokens, strict=True):
            stored = min(hit, prompt_len - 1)
            saved_ps += self._prices(prompt_len, 0) - self._prices(prompt_len - stored, stored)
        return saved_ps / PS
