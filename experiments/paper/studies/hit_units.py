"""What a prompt that is sent twice finds, by its length, where a prefix cache also has windows or states."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from testbed.core.request import Incoming
from testbed.core.sequence import Sequence as Stream
from testbed.core.slots import Refusal
from testbed.experiments.paper.studies.open_sessions import reported
from testbed.experiments.paper.studies.prefix_cache import block_size
from testbed.experiments.paper.studies.study import Finding, Row, Study, Task
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.run_store import RunStore
from testbed.machine import make_pool
from testbed.memory.policy import MemoryPolicy


@dataclass(kw_only=True)
class HitUnits(Study):
    """A unit is a block of the policy. vLLM's law: the units before the last token, less those `dropped` at the end.

    Lengths are the multiples of `step` tokens up to the longest of the `marked` ones, and these.
    """

    common: Sequence[str]
    models: Sequence[str]
    dropped: Sequence[int]
    marked: Sequence[int]
    step: int

    def tasks(self, num_seeds: int | None) -> list[Task]:
        return self.each("{study.name} {model}, {dropped}", self.sent, model=self.models, dropped=self.dropped)

    def sent(self, store: RunStore, model: str, dropped: int) -> list[Row]:
        """A row for each length, on an empty pool."""
        config = configured((*self.common, f"model={model}", f"policy.num_dropped_blocks={dropped}"))
        unit, pool, rows = block_size(config), make_pool(config), []
        for length in sorted({*range(self.step, max(self.marked), self.step), *self.marked}):
            hit = found(config.policy.make("policy", pool), length)
            law = max(0, (length - 1) // unit - dropped) * unit
            rows.append({"model": model, "dropped_units": dropped, "prompt_tokens": length, "hit_tokens": hit,
                         "law_tokens": law, "marked": length in self.marked})  # fmt: skip
        return rows

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        marked = table[table["marked"]].assign(units=table["dropped_units"].map("{} dropped".format))
        places = marked["model"] + marked["prompt_tokens"].map(", {} tokens".format)
        same = "yes" if (table["hit_tokens"] == table["law_tokens"]).all() else "no"
        law = Finding(self.name, f"{len(table)} prompts", "", "equal to vLLM's law at every length", same)
        return [*reported(self.name, marked, places, "units", {"hit_tokens": "tokens found"}), law]


def found(policy: MemoryPolicy, num_tokens: int) -> int:
    """Tokens that a prompt of so many finds of itself when it is sent again."""
    hit = 0
    for number in range(2):
        seq = Stream(number, Incoming(number, 0, num_tokens, 1, prompt_ids=tuple(range(num_tokens))))
        answer = policy.admit([seq], num_tokens)
        assert not isinstance(answer, Refusal), answer
        hit = answer[0].num_cached
        policy.publish(seq, num_tokens)
        seq.num_slots = seq.num_stored = num_tokens
        policy.release(seq)
    return hit
