"""The figures of a run that both sides of a pair have: from its recorder, its summary and its scheduler's state."""

from collections.abc import Mapping
from typing import Any

from testbed.build import Setup
from testbed.sim.recorder import Recorder

KEYS = ("series", "load", "seed")
FIGURES = (
    "arrived", "finished", "mean_batch", "hit_rate", "preemptions", "recomputed_tokens", "ttft_mean_s", "ttft_p50_s",
    "tpot_mean_s", "output_tokens_per_s",
)  # fmt: skip
WORK = ("iterations", "duration_s", "decodes_gpu_s", "prompts_gpu_s", "swaps_gpu_s", "software_s")  # of the GPU's side


def figures(setup: Setup, recorder: Recorder, summary: Mapping[str, Any]) -> dict[str, float | None]:
    """FIGURES by name; the mean batch is over time, hit_rate the share of the prompts' tokens found in the cache."""
    counters = setup.scheduler.policy.counters()
    tokens, hits = counters.get("tokens", 0), counters.get("hit_tokens", 0)
    return {
        "arrived": summary["requests"]["arrived"],
        "finished": summary["requests"]["finished"],
        "mean_batch": summary["batch"]["mean_over_time"],
        "hit_rate": hits / tokens if tokens else None,
        "preemptions": sum(summary["preemptions"].values()),
        "recomputed_tokens": _prefilled(recorder) + hits - _first_prompts(setup, recorder),
        "ttft_mean_s": summary["ttft_s"]["mean"],
        "ttft_p50_s": summary["ttft_s"]["p50"],
        "tpot_mean_s": summary["tpot_s"]["mean"],
        "output_tokens_per_s": summary["throughput"]["output_tokens_per_s"],
    }


def _prefilled(recorder: Recorder) -> int:
    recorder.settle()
    columns = recorder.spans.columns()
    return int((columns["prefill_tokens"] * columns["iterations"]).sum())


def _first_prompts(setup: Setup, recorder: Recorder) -> int:
    """Tokens of the prompts whose first prefill is complete; whole prompts are computed in one iteration."""
    columns, state = recorder.requests.columns(), setup.scheduler.state
    ended = int(columns["prompt_len"][columns["first_token_ps"] >= 0].sum())
    groups = (*state.running.values(), *state.swapped, *state.waiting)
    return ended + sum(group.request.prompt_len for group in groups if group.num_generated)
