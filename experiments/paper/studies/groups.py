"""Memory of models with several KV groups: useful, held and wasted, by page rule.

A pool is filled with sequences of the trace, each at a random point of its decode, until one is
refused. Memory is useful if a later token reads it: all tokens of full attention, the last ones of
a window, one state. The rule `uniform` keeps every token in all attention layers, as systems
without groups do.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from testbed.core.request import Incoming, Rows
from testbed.core.sequence import Sequence as Stream
from testbed.core.sequence import disband, passing_batch
from testbed.core.slots import Refusal
from testbed.core.specs import GIB, ModelSpec
from testbed.experiments.paper.studies.study import Finding, Row, Study, Task, reported
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.run_store import RunStore
from testbed.memory.policy import MemoryPolicy
from testbed.run.config import RunConfig
from testbed.run.machine import make_pool
from testbed.run.workload import make_workload


@dataclass(kw_only=True)
class Groups(Study):
    """One pool for each trace, model and page rule.

    files: traces that need a file of the user, and are left out without it. words: overrides for
    `model, rule`. stateless: rules that cannot store a state. chunk: tokens of a prefill at a time;
    the last token comes by a decode step.
    """

    traces: Mapping[str, Sequence[str]]
    models: Sequence[str]
    words: Mapping[str, Sequence[str]]
    rules: Mapping[str, Sequence[str]]
    stateless: Sequence[str]
    files: Sequence[str]
    chunk: int

    def tasks(self, num_seeds: int | None) -> list[Task]:
        label, seeds = "{study.name} {trace}, {model}, {rule}, seed {seed}", range(num_seeds or 1)
        return self.each(
            label, self.filled, trace=self.traces, model=self.models, rule=self.rules, seed=seeds
        )

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        means = table.groupby(["trace", "model", "rule"], sort=False, as_index=False)[
            "useful_percent"
        ].mean()
        columns = {"useful_percent": "useful share of the pool (%)"}
        return reported(self.name, means, "{trace}, {model}", "{rule}", columns)

    def filled(self, store: RunStore, trace: str, model: str, rule: str, seed: int) -> list[Row]:
        """The GiB of a full pool that are useful, held and wasted."""
        config = self._config(store, trace, model, rule, seed)
        if config is None or (config.model.states and rule in self.stateless):
            return []
        pool = make_pool(config)
        policy: MemoryPolicy = config.policy.make("policy", pool)
        lengths = self._fill(policy, make_workload(config).rows, random.Random(seed))
        used = policy.usage()
        unit = pool.layer_bytes * round(pool.num_slots * pool.num_layers / used.total) / GIB
        copies = config.model.kv_copies(pool.num_gpus)
        useful = copies * sum(needed_bytes(config.model, length) for length in lengths) / GIB
        return [
            {
                "trace": trace,
                "model": model,
                "rule": rule,
                "seed": seed,
                "sequences": len(lengths),
                "tokens": sum(lengths),
                "pool_gib": used.total * unit,
                "useful_gib": useful,
                "held_gib": used.held * unit,
                "wasted_gib": used.allocated * unit - useful,
                "useful_percent": 100 * useful / (used.total * unit),
            }
        ]

    def _config(
        self, store: RunStore, trace: str, model: str, rule: str, seed: int
    ) -> RunConfig | None:
        """The config of a pool; None if the trace needs a file that the user did not give."""
        words = [*self.common, *self.traces[trace], f"model={model}", *self.rules[rule]]
        words += self.words.get(f"{model}, {rule}", ())
        values: dict[str, Any] = {"seed": seed}
        if trace in self.files:
            path = dict(store.lengths).get(trace)
            if path is None:
                return None
            values["trace.path"] = path
        return configured(words, values)

    def _fill(self, policy: MemoryPolicy, rows: Rows, rng: random.Random) -> list[int]:
        """Admit sequences until one is refused; returns the lengths of the others (tokens)."""
        lengths = list[int]()
        for i in range(len(rows)):
            prompt, output = int(rows.prompt_len[i]), int(rows.output_len[i])
            length = prompt + rng.randrange(output)
            if not self._stored(policy, Stream(i, Incoming(i, 0, prompt)), length):
                break
            lengths.append(length)
        return lengths

    def _stored(self, policy: MemoryPolicy, seq: Stream, length: int) -> bool:
        """Store `length` tokens of a sequence; False, without a trace, if that is refused."""
        prefilled = max(length - 1, 1)
        if isinstance(policy.admit([seq], min(prefilled, self.chunk)), Refusal):
            return False
        seq.num_slots = min(prefilled, self.chunk)
        while seq.num_slots < length:
            more = min(self.chunk, prefilled - seq.num_slots) or 1
            batch = passing_batch([seq])
            answer = policy.extend(batch, more)
            disband(batch)
            if isinstance(answer, Refusal):
                policy.release(seq)
                return False
            seq.num_stored, seq.num_slots = seq.num_slots, seq.num_slots + more
        return True


def needed_bytes(model: ModelSpec, num_tokens: int) -> int:
    """Bytes that a later token of the sequence reads."""
    return sum(
        group.num_layers
        * (group.state_bytes or group.slot_bytes * min(num_tokens, group.window or num_tokens))
        for group in model.groups
    )
