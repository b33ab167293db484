"""What a validation supports and what it does not, from the contents of its log."""

from collections.abc import Iterator

from testbed.config import RunConfig
from testbed.experiments.validation.deviations import KINDS, compare
from testbed.experiments.validation.kv_blocks import high_water
from testbed.experiments.validation.log_replay import Replayed
from testbed.identity import content_hash
from testbed.traces.vllm_log import VllmLog

NAMES = dict(zip(KINDS, ("TTFT", "TPOT", "latency"), strict=True))
FILLED = 0.95  # of the pool: memory was short


def conclude(log: VllmLog, config: RunConfig, replayed: Replayed) -> Iterator[str]:
    """Lines for the end of the report."""
    real, rows = log.times, compare("", log.times, replayed.times)
    errors = {row.metric: abs(row.error_percent) for row in rows}
    served = f"{config.model.name} on {config.server.num_gpus} x {config.server.gpu.name}"
    rate = len(real.arrival_s) / max(real.arrival_s[-1], 1e-9)
    running = int(real.running_at(real.first_token_s).max())
    lengths = f"prompts of up to {log.read().prompt_len.max():,} and outputs of up to {real.output_len.max():,} tokens"
    kinds = [kind for kind in KINDS if f"{kind}_mean" in errors]
    means = ", ".join(f"{NAMES[kind]} {errors[f'{kind}_mean']:.1f}%" for kind in kinds)
    tails = ", ".join(f"{NAMES[kind]} {max(errors[f'{kind}_p50'], errors[f'{kind}_p90']):.1f}%" for kind in kinds)
    yield f"\n{log.path}: what this validation supports"
    yield f"  {served} at about {rate:.2g} requests/s, up to {running} of them running, {lengths}:"
    yield f"  errors of the means: {means}; of p50 and p90, the worse one: {tails}"
    yield "what it does not support"
    yield from (f"  {line}" for line in _limits(log, config, replayed))


def _limits(log: VllmLog, config: RunConfig, replayed: Replayed) -> Iterator[str]:
    count = len(log.times.output_len)
    if content_hash(log.path) in replayed.measured.get("software_fitted_on", {}).values():
        yield "a prediction: times were fitted on this very log; validate another one"
    mark = high_water(log, replayed.block_size, config.scheduler.parameters.get("max_num_seqs"))
    share = mark.blocks / replayed.num_blocks
    if share < FILLED and not replayed.preemptions:
        yield f"memory that runs short: the log's requests used at most {share:.0%} of the pool, and none was preempted"
    yield f"p99: {count:,} requests have {count / 100:.3g} beyond it"
    yield "other rates, lengths, models, GPUs and ways to manage memory: nothing here was compared with them"
