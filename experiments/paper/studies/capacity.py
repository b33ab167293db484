"""Table 1 and the sizes of section 3."""

from collections.abc import Sequence
from functools import partial

import pandas as pd

from experiments.paper.studies.study import Finding, Row, Study, Task
from experiments.runs.lab import Lab
from experiments.runs.machine import make_machine
from testbed.core.specs import GIB, ModelSpec


class Capacity(Study):
    """What fits where: arithmetic on the model's shape and the server's memory."""

    def __init__(self, name: str, covers: Sequence[str], drawing: str, models: Sequence[str]) -> None:
        super().__init__(name, covers, drawing)
        self.models = tuple(models)

    def tasks(self, num_seeds: int | None) -> list[Task]:
        return [Task(f"table1 {model}", partial(sizes, model=model)) for model in self.models]

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        rows = table.fillna("").itertuples(index=False)
        return [Finding(row.figure, row.setting, "", row.quantity, row.simulated, note=row.note) for row in rows]


def sizes(lab: Lab, model: str) -> list[Row]:
    """The rows of one model on its server."""
    config = lab.config([f"model={model}"])
    spec, server = make_machine(config)
    name = server.name.removesuffix(f"-x{server.num_gpus}")
    pool = {"figure": "table1", "setting": f"{model} {name} x{server.num_gpus}"}
    rows = [
        {**pool, "quantity": "parameters_memory", "simulated": spec.weight_bytes / GIB},
        {**pool, "quantity": "kv_memory", "simulated": server.kv_pool_bytes(spec) / GIB},
        {**pool, "quantity": "kv_slots", "simulated": server.kv_slots(spec, 16)},
    ]
    return rows + (section3(spec) if model == "opt-13b" else [])


def section3(spec: ModelSpec) -> list[Row]:
    """The sizes that section 3 tells of OPT-13B."""
    kib, whole = spec.kv_bytes_per_token / 1024, spec.kv_bytes_per_token * spec.max_len / GIB
    rounded = "the paper gives one decimal; rounded to it the two agree"
    return [
        {"figure": "sec3", "setting": spec.name, "quantity": "kv_bytes_per_token", "simulated": kib},
        {
            "figure": "sec3",
            "setting": f"{spec.name} max_len {spec.max_len}",
            "quantity": "kv_bytes_per_request",
            "simulated": whole,
            "note": rounded,
        },
    ]
