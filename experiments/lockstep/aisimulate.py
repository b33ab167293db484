"""AISimulate's engine, where it is installed, as a third column: when each request has its last token."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from testbed.build import Setup, build
from testbed.core.request import PS, Request
from testbed.cost.model import UNBOUNDED, Affine, CostModel, Work
from testbed.experiments.lockstep.vllm_installation import Options, options_of
from testbed.memory.prefix_cache.prefix_index import block_contents
from testbed.sim.simulation import simulate

MS = PS // 1000
PS_PER_US = PS // 10**6
TIMES = ("arrival", "finish")


class FixedTimes(CostModel):
    """An iteration takes step_ps if it decodes, and step_ps more if it computes prompts."""

    def __init__(self, step_ps: int) -> None:
        self.step_ps = step_ps

    def iteration(self, work: Work) -> int:
        return self.step_ps * (bool(work.decode_seqs) + bool(work.prefill))

    def decode(self, work: Work) -> Affine:
        return Affine(self.step_ps, 0, UNBOUNDED)


def third_column(setup: Setup, requests: Sequence[Request], step_ps: int) -> Iterator[str]:
    """One line: how many requests have their last token at the same time as ours; nothing where it is not installed."""
    try:
        import dynamo._core as core
    except ImportError:
        return
    options = options_of(setup)
    if options.asynchronous or options.long_prefill_token_threshold or not options.enable_chunked_prefill:
        yield "AISimulate: has neither asynchronous scheduling nor thresholds nor whole prompts; left out"
        return
    start_ps = requests[0].arrival_ps  # where its clock begins
    requests = [one._replace(arrival_ps=one.arrival_ps - start_ps) for one in requests]
    built = build(setup.config)
    rows = simulate(requests, built.scheduler, FixedTimes(step_ps), built.model.max_len).requests.columns()
    arrival_us, finish_us = ([round(ps / PS_PER_US) for ps in rows[f"{name}_ps"].tolist()] for name in TIMES)
    lengths = rows["prompt_len"].tolist(), rows["output_len"].tolist()
    ours: Counter[tuple[int, ...]] = Counter(zip(arrival_us, *lengths, finish_us, strict=True))
    equal = sum((ours & _theirs(core, options, requests, step_ps)).values())
    yield f"AISimulate: {equal:,} of {len(requests):,} requests have their last token when ours have it"


def _theirs(core: Any, options: Options, requests: Sequence[Request], step_ps: int) -> Counter[tuple[int, ...]]:
    engine = {
        "num_gpu_blocks": options.num_blocks - 1, "block_size": options.block_size,
        "max_num_seqs": options.max_num_seqs, "max_num_batched_tokens": options.max_num_batched_tokens,
        "enable_prefix_caching": options.caches,
        "timing_model": {"type": "fixed", "prefill_ms": step_ps / MS, "decode_ms": step_ps / MS},
    }  # fmt: skip
    with TemporaryDirectory(prefix="lockstep-") as folder:
        path = Path(folder, "trace.jsonl")
        path.write_text("\n".join(_lines(requests, options.block_size)), encoding="utf-8")
        result = core.run_mocker_trace_replay(
            [str(path)], extra_engine_args={"engine": engine}, trace_block_size=options.block_size,
            capture_per_request=True,
        )  # fmt: skip
    names = ("arrival_time_ms", "input_length", "output_length", "last_token_ms")
    rows = result["per_request"] if isinstance(result, dict) else result.per_request
    return Counter(
        (round(row[names[0]] * 1000), row[names[1]], row[names[2]], round(row[names[3]] * 1000)) for row in rows
    )


def _lines(requests: Sequence[Request], block_size: int) -> Iterator[str]:
    """Its trace: blocks by number, equal ones for equal contents behind equal ones."""
    numbers, known = count(1), dict[Any, int]()
    for one in requests:
        ids, before = list[int](), 0
        contents = () if one.prompt_ids is None else block_contents(
            one.prompt_ids, one.tokens_per_id, one.prompt_len, block_size
        )  # fmt: skip
        for content in contents:
            if (before, content) not in known:
                known[before, content] = next(numbers)
            before = known[before, content]
            ids.append(before)
        ids += [next(numbers) for _ in range(-(-one.prompt_len // block_size) - len(ids))]
        yield json.dumps({
            "timestamp": one.arrival_ps / MS, "input_length": one.prompt_len,
            "output_length": one.output_len, "hash_ids": ids,
        })  # fmt: skip
