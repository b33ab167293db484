"""Schedulers of vLLM's that write down each iteration: what it computes, and when.

`--scheduler-cls` is vLLM's own option. Nothing of vLLM's behaviour is changed: each method calls
vLLM's and takes the time, of time.monotonic, which is the clock of vLLM's queued_ts and
first_token_ts. This module runs inside vLLM's engine process, with vLLM's packages only. The folder
in the environment's TESTBED_STEPS gets steps.csv, facts.json and preempted.csv.
"""

import csv
import json
import os
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import SchedulerInterface
from vllm.v1.core.sched.scheduler import Scheduler

FOLDER = "TESTBED_STEPS"
MOST_ROWS = 5000  # rows that are kept until they are written
COLUMNS = (
    "schedule_start_s",
    "schedule_end_s",
    "result_s",
    "updated_s",
    "running",
    "waiting",
    "preempted",
    "prompts",
    "prompt_tokens",
    "decodes",
    "decode_context",
    "max_context",
    "used_blocks",
    "chunks",
)


class Row:
    """One iteration. times: of its COLUMNS, in seconds; queues: running and waiting requests.

    chunks: (tokens stored before, new tokens) of each prompt, or of one that is recomputed;
    contexts: the tokens stored before, of each decode.
    """

    def __init__(self, scheduler: Any, output: Any, start_s: float, end_s: float) -> None:
        self.times = [start_s, end_s, 0.0, 0.0]
        self.queues = [len(scheduler.running), len(scheduler.waiting)]
        self.preempted = output.preempted_req_ids or ()
        self.chunks = list[tuple[int, int]]()
        self.contexts = list[int]()
        for request in output.scheduled_new_reqs:
            num_new = output.num_scheduled_tokens[request.req_id]
            self.chunks.append((request.num_computed_tokens, num_new))
        cached = output.scheduled_cached_reqs
        for request_id, num_stored in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            num_new = output.num_scheduled_tokens[request_id]
            if num_new > 1:
                self.chunks.append((num_stored, num_new))
            else:
                self.contexts.append(num_stored)
        num_blocks = scheduler.cache_config.num_gpu_blocks
        self.used_blocks = round(scheduler.kv_cache_manager.usage * (num_blocks - 1))

    def cells(self) -> list[Any]:
        """The row of steps.csv."""
        return [
            *(f"{moment:.6f}" for moment in self.times),
            *self.queues,
            len(self.preempted),
            len(self.chunks),
            sum(new for _, new in self.chunks),
            len(self.contexts),
            sum(self.contexts),
            max(self.contexts, default=0),
            self.used_blocks,
            ";".join(f"{stored}+{new}" for stored, new in self.chunks),
        ]


class Logged(SchedulerInterface):  # type: ignore[misc]
    """Keeps a row for each iteration, and writes the rows when no request is left or when there are
    many of them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rows = list[Row]()
        self._under_way = deque[Row]()
        self._preemptions = Counter[str]()
        self._folder = Path(os.environ[FOLDER])
        with (self._folder / "steps.csv").open("w", newline="") as file:
            csv.writer(file).writerow(COLUMNS)
        self._write_facts()

    def schedule(self) -> Any:
        start_s = time.monotonic()
        output = super().schedule()
        row = Row(self, output, start_s, time.monotonic())
        self._preemptions.update(row.preempted)
        self._rows.append(row)
        self._under_way.append(row)
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        row = self._under_way.popleft()
        row.times[2] = time.monotonic()
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        row.times[3] = time.monotonic()
        if not self._under_way and (not self.has_requests() or len(self._rows) > MOST_ROWS):
            self._write()
        return outputs

    def shutdown(self) -> None:
        self._write()
        super().shutdown()

    def _write(self) -> None:
        finished = len(self._rows) - len(self._under_way)
        with (self._folder / "steps.csv").open("a", newline="") as file:
            csv.writer(file).writerows(row.cells() for row in self._rows[:finished])
        del self._rows[:finished]
        with (self._folder / "preempted.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("request_id", "preemptions"), *self._preemptions.items()])

    def _write_facts(self) -> None:
        config = self.vllm_config
        graphs = config.compilation_config
        facts = {
            "block_size": self.block_size,
            "num_gpu_blocks": self.cache_config.num_gpu_blocks,
            "prefix_caching": bool(self.cache_config.enable_prefix_caching),
            "max_num_batched_tokens": self.scheduler_config.max_num_batched_tokens,
            "max_num_seqs": self.scheduler_config.max_num_seqs,
            "max_model_len": config.model_config.max_model_len,
            "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
            "dtype": str(config.model_config.dtype),
            "async_scheduling": bool(self.scheduler_config.async_scheduling),
            "graphs": str(graphs.cudagraph_mode),
            "graph_sizes": list(graphs.cudagraph_capture_sizes or []),
        }
        (self._folder / "facts.json").write_text(json.dumps(facts, indent=1))


class LoggedAsyncScheduler(Logged, AsyncScheduler):  # type: ignore[misc]
    """vLLM's asynchronous scheduler, its default."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self.scheduler_config.async_scheduling:
            raise ValueError("these options need --no-async-scheduling: vLLM cannot schedule ahead")


class LoggedScheduler(Logged, Scheduler):  # type: ignore[misc]
    """vLLM's scheduler under --no-async-scheduling."""
