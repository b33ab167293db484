"""The block size against the time of a transfer between a GPU and its host, as measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import pandas as pd

from testbed.core.errors import InputError
from testbed.core.request import PS
from testbed.core.slots import DEVICE
from testbed.cost.link_times import INTO, OUT, measured_link
from testbed.cost.model import Moved
from testbed.experiments.paper.studies.open_sessions import reported
from testbed.experiments.paper.studies.study import Finding, Row, Study, Task
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.run_store import RunStore

WAYS = {OUT: "to the host", INTO: "from the host"}


@dataclass(kw_only=True)
class TransferSizes(Study):
    """num_tokens tokens in blocks that lie anywhere, on the GPU and on the host."""

    common: Sequence[str]
    num_tokens: int
    block_sizes: Sequence[int]
    methods: Sequence[str]

    def tasks(self, num_seeds: int | None) -> list[Task]:
        return [Task(self.name, self.times)]

    def times(self, store: RunStore) -> list[Row]:
        """A row for each way, method and block size."""
        config = configured((*self.common, *store.overrides))
        link = measured_link(config.model, config.server)
        if link is None:
            raise InputError(f"{self.name}: {config.server.gpu.name} names no measured transfers")
        gigabytes = self.num_tokens * config.model.kv_bytes_per_token / config.server.num_gpus / 1e9
        rows = []
        for way, method, size in product(WAYS, self.methods, self.block_sizes):
            num_blocks = self.num_tokens // size
            seconds = link(method, way, [Moved(DEVICE, "dram", size, num_blocks, num_blocks)]) / PS
            rows.append({"way": WAYS[way], "method": method, "block_size": size, "tokens": self.num_tokens,
                         "transfer_ms": 1e3 * seconds, "gb_per_s": gigabytes / seconds})  # fmt: skip
        return rows

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        places = table["way"] + table["block_size"].map(", {} tokens".format)
        return reported(self.name, table, places, "method", {"transfer_ms": "time (ms)"})
