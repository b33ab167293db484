"""The paired runs, and their configs: resolved configs of `testbed run`."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from testbed.core.errors import InputError
from testbed.core.shapes import read_model
from testbed.core.specs import ModelSpec

AZURE = "kernels/results/engine/azure-conversations.csv.gz"  # commands are run from the repository's root
Node = dict[str, Any]


def part(target: str, **parameters: Any) -> Node:
    """A part of a run as a config has it."""
    return {"_target_": f"testbed.{target}", **parameters}


@dataclass(frozen=True, slots=True)
class Stage:
    """The setting of the pairs: seconds of arrivals, the models by name, and the engine's options."""

    seconds: float
    models: dict[str, ModelSpec]
    pool_gib: dict[str, float]
    engine: Node
    cost: Callable[[str, str], Node]  # the cost model of a model with a decode kernel
    rates: float = 1.0  # times the rates of the pairs
    longest: int | None = None  # tokens of prompt and output; None: the model's max_len
    warm: tuple[int, ...] = ()  # sizes of prompt batches that a process runs once, before anything is measured
    batches: tuple[int, ...] = (1, 8, 32, 64, 128)  # at which software times are measured


@dataclass(frozen=True, slots=True)
class Pair:
    """One run by name; rate is in requests a second, for replays a speed-up. `about` is a line for the table."""

    name: str
    about: str
    model: str
    rate: float
    policy: Node
    trace: Node
    kernel: str = "paged"
    preemption: str = "Recompute"
    swap_space_gib: float = 0.0
    max_len: int | None = None
    replay: bool = False

    def config(self, stage: Stage) -> Node:
        """The run's config; `testbed run` and the engine read the same values."""
        spec = stage.models[self.model]
        pool_gib, max_len = stage.pool_gib[self.model], stage.longest or self.max_len
        limits = {"max_num_batched_tokens": 2560, "max_num_seqs": 256}
        return {
            "model": part("core.specs.ModelSpec", **asdict(spec)),
            "server": part("core.specs.ServerSpec", name="h200-x1", gpu=H200, num_gpus=1,
                           kv_memory_gib={spec.name: pool_gib}),
            "trace": self._trace(stage),
            "arrivals": self._arrivals(stage),
            "policy": self.policy,
            "scheduler": part("sched.mixed.MixedPrefill", **limits),
            "preemption": part(f"sched.preemption.{self.preemption}"),
            "cost": stage.cost(self.model, self.kernel),
            "beams": part("sched.beams.SyntheticBeams"),
            "seed": 0,
            "workload": {"max_len": max_len, "num_seqs": 1, "beam": False},
            "swap_space_gib": self.swap_space_gib,
            "window_s": [0.0, stage.seconds],
            "stop_at_latency": None,
            "fast_forward": True,
            "outputs": "full",
            "engine": stage.engine,
        }  # fmt: skip

    def _trace(self, stage: Stage) -> Node:
        if stage.longest is None or "max_prompt" not in self.trace:
            return self.trace
        half = stage.longest // 2
        return self.trace | {"max_prompt": half, "max_output": half - 1}

    def _arrivals(self, stage: Stage) -> Node:
        rate = self.rate * stage.rates
        if self.replay:
            return part("sim.arrivals.Replay", speedup=rate)
        return part("sim.arrivals.Poisson", rate=rate, duration_s=stage.seconds)


def measured(model: str, kernel: str) -> Node:
    """The measured cost profile, without overrides."""
    choices = part("cost.profile.Choices", block_size=16, kernel=kernel, spread="ragged")
    return part("cost.profile.ProfileCost", path=f"h200-{model}-tp1", choices=choices)


def guessed(model: str, kernel: str) -> Node:
    """Costs from a data sheet, for models without a measured profile."""
    return part("cost.analytic.AnalyticCost", efficiencies=part("cost.analytic.Efficiencies"))


H200 = part("core.specs.GpuSpec", name="h200", device="NVIDIA H200", memory_bytes=150_000_000_000,
            memory_bandwidth=4.8e12, fp16_flops=989.0e12, host_bandwidth=55.0e9, link_bandwidth=450.0e9)  # fmt: skip
PAGED = part("memory.paged.paged.Paged", block_size=16, watermark=0.01)
LRU = part("memory.prefix_cache.eviction.lru.Lru")
PREFIXES = part("memory.prefix_cache.prefix_caching.PrefixCaching", block_size=16, watermark=0.01, eviction=LRU)
SHAREGPT = part("traces.synthetic.Fitted", model="sharegpt")
AZURE_TRACE = part("traces.azure.AzureCsv", path=AZURE)
CHATS = part("traces.chat_histories.ChatHistories", model="chat", new_probability=0.2, max_prompt=7000, max_output=1016)
KNEE = 7.57  # req/s that opt-13b sustains at most with 12 GiB and ShareGPT, simulated with the shipped profile


def _sharegpt(name: str, about: str, rate: float, policy: Node, **more: Any) -> Pair:
    return Pair(name, f"ShareGPT, {about}", "opt-13b", round(rate, 2), policy, SHAREGPT, max_len=2048, **more)


def _contiguous(rule: str) -> Pair:
    """Contiguous memory by one of the three rules of Orca."""
    policy, name = part(f"memory.contiguous.contiguous.Contiguous{rule}", block_size=16), rule.lower()
    about = f"contiguous {name} at 50%"
    return _sharegpt(f"contiguous-{name}", about, 0.5 * KNEE, policy, kernel="contiguous")


PAIRS = [
    *(_sharegpt(f"paged-{s}", f"paged at {s}% of the knee", s / 100 * KNEE, PAGED) for s in (50, 80, 95)),
    _sharegpt("paged-120", "paged at 120%, recompute", 1.2 * KNEE, PAGED),
    _sharegpt("swap-120", "paged at 120%, swap", 1.2 * KNEE, PAGED, preemption="Swap", swap_space_gib=8.0),
    *(_contiguous(rule) for rule in ("Max", "Pow2", "Oracle")),
    Pair("azure", "Azure conversations, 1.8 times as fast", "llama-3-8b", 1.8, PAGED, AZURE_TRACE, replay=True),
    Pair("chats", "chat histories, prefix cache", "llama-3-8b", 10.0, PREFIXES, CHATS),
]


def device() -> Stage:
    """On a GPU: 30 s of arrivals, the paper's pool for opt-13b."""
    models = {name: read_model(name) for name in ("opt-13b", "llama-3-8b")}
    engine, pools = {"device": "cuda", "dtype": "float16", "graphs": 128}, {"opt-13b": 12.0, "llama-3-8b": 16.0}
    sizes = (*range(1, 513), *range(520, 2561, 40))  # products by kernels that are loaded when first used
    return Stage(30.0, models, pools, engine, measured, warm=sizes)


def rehearsal() -> Stage:
    """The same runs on a CPU, in seconds: tiny models of both families, short requests, few of them."""
    opt = ModelSpec("tiny-opt", 1, 16, 2, 2, 8, 16, 2, 61, 256, True)
    llama = ModelSpec("tiny-llama", 1, 16, 2, 1, 8, 16, 3, 61, 8192)
    engine = {"device": "cpu", "dtype": "float32", "graphs": 0}
    models = {"opt-13b": opt, "llama-3-8b": llama}
    gib = {name: 4096 * spec.kv_bytes_per_token / 2**30 for name, spec in models.items()}
    return Stage(1.0, models, gib, engine, guessed, rates=4.0, longest=200, warm=(16, 200), batches=(1, 4))


def chosen(names: str | None) -> list[Pair]:
    """The pairs of these names, or all."""
    known = {pair.name: pair for pair in PAIRS}
    unknown = [name for name in (names or "").split(",") if name and name not in known]
    if unknown:
        raise InputError(f"pair {unknown[0]}: is unknown (choose from {', '.join(known)})")
    return [known[name] for name in names.split(",")] if names else PAIRS
