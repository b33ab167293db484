"""The paired runs around the sustainable load, and their configs: resolved configs of `testbed run`."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from testbed.core.shapes import read_model
from testbed.core.specs import ModelSpec

Node = dict[str, Any]
LOADS = (0.5, 0.8, 0.95, 1.1, 1.5, 2.0, 4.0)  # times the sustainable load
KNEE = 1.1  # loads above it run with all seeds
SEEDS = 3
BLOCK, LONGEST = 16, 4096  # tokens of a block, and of a sequence
LARGEST, HOST = 49152, 32768  # tokens of the pool of software times, and of the host's


def part(target: str, **parameters: Any) -> Node:
    """A part of a run as a config has it."""
    return {"_target_": f"testbed.{target}", **parameters}


@dataclass(frozen=True, slots=True)
class Stage:
    """The setting of the pairs: a model, seconds of arrivals, the engine's options."""

    model: ModelSpec
    seconds: float
    engine: Node
    cost: Callable[[str], Node]  # by the model's name
    warm: tuple[int, ...] = ()  # sizes of prompt batches that a process runs once, before anything is measured
    batches: tuple[tuple[int, int], ...] = ()  # requests and sequences of each, at which software times are measured


@dataclass(frozen=True, slots=True)
class Series:
    """Runs that differ in load and seed. `rate` is sustainable, in requests a second; `pool` is in tokens."""

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

    def config(self, stage: Stage) -> Node:
        """The run's config; `testbed run` and the engine read the same values."""
        series, spec = self.series, stage.model
        return {
            "model": part("core.specs.ModelSpec", **asdict(spec)),
            "server": part("core.specs.ServerSpec", name="h200-x1", gpu=H200, num_gpus=1,
                           kv_memory_gib={spec.name: gib(spec, series.pool)}),
            "trace": series.trace,
            "arrivals": part("sim.arrivals.Poisson", rate=self.load * series.rate, duration_s=stage.seconds),
            "policy": series.policy,
            "scheduler": part("sched.mixed.MixedPrefill", max_num_batched_tokens=2560, max_num_seqs=128),
            "preemption": part(f"sched.preemption.{series.preemption}"),
            "cost": stage.cost(spec.name),
            "beams": part("sched.beams.SyntheticBeams"),
            "seed": self.seed,
            "workload": {"max_len": LONGEST, "num_seqs": series.num_seqs, "beam": False},
            "swap_space_gib": gib(spec, HOST) if series.preemption == "Swap" else 0.0,
            "window_s": [0.0, stage.seconds],
            "stop_at_latency": None,
            "engine": stage.engine,
        }  # fmt: skip


def gib(spec: ModelSpec, num_tokens: int) -> float:
    """The memory of K and V of so many tokens."""
    return num_tokens * spec.kv_bytes_per_token / 2**30


def measured(model: str) -> Node:
    """The measured cost profile, without overrides."""
    choices = part("cost.profile.Choices", block_size=BLOCK, kernel="paged", spread="ragged")
    return part("cost.profile.ProfileCost", path=f"h200-{model}-tp1", choices=choices)


H200 = part("core.specs.GpuSpec", name="h200", device="NVIDIA H200", memory_bytes=150_000_000_000,
            memory_bandwidth=4.8e12, fp16_flops=989.0e12, host_bandwidth=55.0e9, link_bandwidth=450.0e9)  # fmt: skip
PAGED = part("memory.paged.paged.Paged", block_size=BLOCK, watermark=0.01)
LRU = part("memory.prefix_cache.eviction.lru.Lru")
CACHED = part("memory.prefix_cache.prefix_caching.PrefixCaching", block_size=BLOCK, watermark=0.01, eviction=LRU)
SHAREGPT = part("traces.synthetic.Fitted", model="sharegpt")
# Commands are run from the repository's root.
AZURE = part("traces.azure.AzureCsv", path="kernels/results/engine/azure-conversations.csv.gz")
CHATS = part("traces.chat_histories.ChatHistories", model="chat", new_probability=0.2, max_prompt=2000, max_output=400)

# Sustainable rates: the highest at which 90% of the requests of 30 simulated seconds have their first token within 1 s,
# with the engine's profile of 2026-11-22 and the software time of the pairs before these.
SERIES = (
    Series("sharegpt", "ShareGPT, recompute", SHAREGPT, 14.9, 16384, PAGED, "Recompute"),
    Series("azure-swap", "Azure conversations, swap", AZURE, 7.38, 12288, PAGED, "Swap"),
    Series("chats-cache", "chats, prefix cache, recompute", CHATS, 7.62, 16384, CACHED, "Recompute"),
    Series("chats-cache-swap", "chats, prefix cache, swap", CHATS, 6.99, 16384, CACHED, "Swap"),
)
FEWER = (  # at some loads only
    Series("sharegpt-swap", "ShareGPT, swap", SHAREGPT, 15.4, 16384, PAGED, "Swap"),
    Series("chats", "chats, recompute", CHATS, 4.83, 16384, PAGED, "Recompute"),
    Series("azure", "Azure conversations, recompute", AZURE, 7.38, 12288, PAGED, "Recompute"),
    Series("samples", "ShareGPT, four samples each, recompute", SHAREGPT, 6.0, 16384, PAGED, "Recompute", 4),
)
MACHINE = Pair(Series("machine", "the largest pools", CHATS, 1.0, LARGEST, PAGED, "Swap"), 1.0, 0)
PAIRS = [  # the most wanted first: a limit of time may end them
    *(Pair(series, load, 0) for series in SERIES for load in LOADS),
    *(Pair(FEWER[i], 0.95, 0) for i in (0, 1, 3)),
    *(Pair(series, load, seed) for seed in range(1, SEEDS) for series in SERIES[:3] for load in LOADS if load > KNEE),
    *(Pair(series, 2.0, seed) for seed in range(SEEDS) for series in FEWER[:3]),
    *(Pair(SERIES[3], load, seed) for load in LOADS if load > KNEE for seed in range(1, SEEDS)),
]


def device() -> Stage:
    """On a GPU: 8 s of arrivals, small pools."""
    engine = {"device": "cuda", "dtype": "float16", "graphs": 128}
    sizes = (*range(1, 513), *range(520, 2561, 40))  # products by kernels that are loaded when first used
    batches = (*((n, 1) for n in (1, 8, 32, 64, 128)), (8, 4), (32, 4))
    return Stage(read_model("llama-3-8b"), 8.0, engine, measured, warm=sizes, batches=batches)
