"""The paired runs around the sustainable load, which a GPU has served: their configs, as resolved
ones of `testbed run`, and their figures.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from testbed.core.shapes import read_model
from testbed.core.specs import ModelSpec
from testbed.engine.recorder import Recorder
from testbed.run.build import Setup

Node = dict[str, Any]
LOADS = (0.5, 0.8, 0.95, 1.1, 1.5, 2.0, 4.0)  # times the sustainable load
KNEE = 1.1  # loads above it run with all seeds
SEEDS = 3
BLOCK, LONGEST = 16, 4096  # tokens of a block, and of a sequence
HOST = 32768  # tokens of the host's pool
SECONDS = 8.0  # of arrivals
MODEL = "llama-3-8b"
PROFILE = "gpu-engine/h200-llama-3-8b-tp1"  # of the engine that has served them


def part(target: str, **parameters: Any) -> Node:
    """A part of a run as a config has it."""
    return {"_target_": f"testbed.{target}", **parameters}


@dataclass(frozen=True, slots=True)
class Series:
    """Runs that differ in load and seed. `rate` is sustainable, in requests a second; `pool` is in
    tokens.
    """

    name: str
    about: str
    trace: Node
    rate: float
    pool: int
    policy: Node
    preemption: str
    num_seqs: int = 1


@dataclass(frozen=True, slots=True)
class Pair:
    """One run on both sides: a series at `load` times its sustainable rate."""

    series: Series
    load: float
    seed: int

    @property
    def name(self) -> str:
        return f"{self.series.name}-{self.load:g}-{self.seed}"

    def config(self) -> Node:
        """The config of its simulation, with the engine's costs."""
        series, spec = self.series, read_model(MODEL)
        return {
            "model": part("core.specs.ModelSpec", **asdict(spec)),
            "server": part(
                "run.config.ServerConfig",
                name="h200-x1",
                gpu=H200,
                num_gpus=1,
                kv_memory_gib={spec.name: gib(spec, series.pool)},
            ),
            "trace": series.trace,
            "arrivals": part(
                "engine.arrivals.Poisson", rate=self.load * series.rate, duration_s=SECONDS
            ),
            "policy": series.policy,
            "scheduler": part(
                "sched.mixed.MixedPrefill", max_num_batched_tokens=2560, max_num_seqs=128
            ),
            "preemption": part(f"sched.preemption.{series.preemption}"),
            "cost": COST,
            "beams": part("sched.beam_search.SyntheticBeams"),
            "seed": self.seed,
            "workload": {"max_len": LONGEST, "num_seqs": series.num_seqs, "beam": False},
            "swap_space_gib": gib(spec, HOST) if series.preemption == "Swap" else 0.0,
            "window_s": [0.0, SECONDS],
            "stop_at_latency": None,
        }


def gib(spec: ModelSpec, num_tokens: int) -> float:
    """The memory of K and V of num_tokens tokens."""
    return num_tokens * spec.kv_bytes_per_token / 2**30


# swap_waits: what the engine does, see CudaMoves
CHOICES = part(
    "cost.profile.Choices", block_size=BLOCK, kernel="paged", spread="ragged", swap_waits="all in"
)
COST = part("cost.profile.ProfileCost", path=PROFILE, choices=CHOICES)
H200 = part(
    "core.specs.GpuSpec",
    name="h200",
    device="NVIDIA H200",
    memory_bytes=150_000_000_000,
    memory_bandwidth=4.8e12,
    fp16_flops=989.0e12,
    host_bandwidth=55.0e9,
    link_bandwidth=450.0e9,
)
PAGED = part("memory.paged.paged.Paged", block_size=BLOCK, watermark=0.01)
LRU = part("memory.prefix_cache.eviction.lru.Lru")
CACHED = part(
    "memory.prefix_cache.prefix_caching.PrefixCaching",
    block_size=BLOCK,
    watermark=0.01,
    eviction=LRU,
)
SHAREGPT = part("traces.synthetic.Fitted", model="sharegpt")
# Commands are run from the repository's root.
AZURE = part("traces.azure.AzureCsv", path="kernels/results/engine/azure-conversations.csv.gz")
CHATS = part(
    "traces.chat_histories.ChatHistories",
    model="chat",
    new_probability=0.2,
    max_prompt=2000,
    max_output=400,
)

# Sustainable rates: the highest at which 90% of the requests of 30 simulated seconds have their
# first token within 1 s, with the engine's profile of 2026-11-22 and the software time of the pairs
# before these.
SERIES = (
    Series("sharegpt", "ShareGPT, recompute", SHAREGPT, 14.9, 16384, PAGED, "Recompute"),
    Series("azure-swap", "Azure conversations, swap", AZURE, 7.38, 12288, PAGED, "Swap"),
    Series(
        "chats-cache", "chats, prefix cache, recompute", CHATS, 7.62, 16384, CACHED, "Recompute"
    ),
    Series("chats-cache-swap", "chats, prefix cache, swap", CHATS, 6.99, 16384, CACHED, "Swap"),
)
FEWER = (  # at some loads only
    Series("sharegpt-swap", "ShareGPT, swap", SHAREGPT, 15.4, 16384, PAGED, "Swap"),
    Series("chats", "chats, recompute", CHATS, 4.83, 16384, PAGED, "Recompute"),
    Series("azure", "Azure conversations, recompute", AZURE, 7.38, 12288, PAGED, "Recompute"),
    Series(
        "samples",
        "ShareGPT, four samples each, recompute",
        SHAREGPT,
        6.0,
        16384,
        PAGED,
        "Recompute",
        4,
    ),
)
OVERLOADS = [load for load in LOADS if load > KNEE]
OTHER_SEEDS = range(1, SEEDS)
PAIRS = [  # in the order in which they were served
    *(Pair(series, load, 0) for series, load in product(SERIES, LOADS)),
    *(Pair(FEWER[i], 0.95, 0) for i in (0, 1, 3)),
    *(
        Pair(series, load, seed)
        for seed, series, load in product(OTHER_SEEDS, SERIES[:3], OVERLOADS)
    ),
    *(Pair(series, 2.0, seed) for seed, series in product(range(SEEDS), FEWER[:3])),
    *(Pair(SERIES[3], load, seed) for load, seed in product(OVERLOADS, OTHER_SEEDS)),
]


FIGURES = (
    "arrived",
    "finished",
    "mean_batch",
    "hit_rate",
    "preemptions",
    "recomputed_tokens",
    "ttft_mean_s",
    "ttft_p50_s",
    "tpot_mean_s",
    "output_tokens_per_s",
)
IN_SUMMARY = {
    "arrived": ("requests", "arrived"),
    "finished": ("requests", "finished"),
    "mean_batch": ("batch", "mean_over_time"),
    "ttft_mean_s": ("ttft_s", "mean"),
    "ttft_p50_s": ("ttft_s", "p50"),
    "tpot_mean_s": ("tpot_s", "mean"),
    "output_tokens_per_s": ("throughput", "output_tokens_per_s"),
}


def figures(
    setup: Setup, recorder: Recorder, summary: Mapping[str, Any]
) -> dict[str, float | None]:
    """FIGURES by name; the mean batch is over time, hit_rate the share of the prompts' tokens found
    in the cache.
    """
    counters = setup.scheduler.policy.counters()
    tokens, hits = counters.get("tokens", 0), counters.get("hit_tokens", 0)
    recorder.settle()
    spans = recorder.spans.columns()
    prefilled = int((spans["prefill_tokens"] * spans["iterations"]).sum())
    values = {name: summary[part][key] for name, (part, key) in IN_SUMMARY.items()} | {
        "hit_rate": hits / tokens if tokens else None,
        "preemptions": sum(summary["preemptions"].values()),
        "recomputed_tokens": prefilled + hits - _first_prompts(setup, recorder),
    }
    return {name: values[name] for name in FIGURES}


def _first_prompts(setup: Setup, recorder: Recorder) -> int:
    """Tokens of the prompts whose first prefill is complete; whole prompts are computed in one
    iteration.
    """
    columns, state = recorder.requests.columns(), setup.scheduler.state
    ended = int(columns["prompt_len"][columns["first_token_ps"] >= 0].sum())
    groups = (*state.running.values(), *state.swapped, *state.waiting)
    return ended + sum(group.request.prompt_len for group in groups if group.num_generated)
