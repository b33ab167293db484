"""Which runs are paired, and their configs: those of `testbed run`, resolved."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from testbed.core.shapes import read_model
from testbed.core.specs import ModelSpec

AZURE = "kernels/results/engine/azure-conversations.csv.gz"  # commands are run from the repository's root
Node = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stage:
    """On what the pairs run: seconds of arrivals, the models by name, and how the engine computes."""

    seconds: float
    models: dict[str, ModelSpec]
    pool_gib: dict[str, float]
    engine: Node
    cost: Callable[[str, str], Node]  # the prices of a model with a decode kernel
    rates: float = 1.0  # times the rates of the pairs
    longest: int | None = None  # tokens of prompt and output together; None: the model's
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
        return {
            "model": {"_target_": "testbed.core.specs.ModelSpec", **asdict(spec)},
            "server": server(spec.name, stage.pool_gib[self.model]),
            "trace": self._trace(stage),
            "arrivals": self._arrivals(stage),
            "policy": self.policy,
            "scheduler": {
                "_target_": "testbed.sched.mixed.MixedPrefill",
                "max_num_batched_tokens": 2560,
                "max_num_seqs": 256,
            },
            "preemption": {"_target_": f"testbed.sched.preemption.{self.preemption}"},
            "cost": stage.cost(self.model, self.kernel),
            "beams": {"_target_": "testbed.sched.beams.SyntheticBeams"},
            "seed": 0,
            "workload": {"max_len": stage.longest or self.max_len, "num_seqs": 1, "beam": False},
            "swap_space_gib": self.swap_space_gib,
            "window_s": [0.0, stage.seconds],
            "stop_at_latency": None,
            "fast_forward": True,
            "outputs": "full",
            "engine": stage.engine,
        }

    def _trace(self, stage: Stage) -> Node:
        if stage.longest is None or "max_prompt" not in self.trace:
            return self.trace
        half = stage.longest // 2
        return self.trace | {"max_prompt": half, "max_output": half - 1}

    def _arrivals(self, stage: Stage) -> Node:
        if self.replay:
            return {"_target_": "testbed.sim.arrivals.Replay", "speedup": self.rate * stage.rates}
        rate = self.rate * stage.rates
        return {"_target_": "testbed.sim.arrivals.Poisson", "rate": rate, "duration_s": stage.seconds}


def server(model: str, pool_gib: float) -> Node:
    """One H200 whose pool is as large as said."""
    gpu = {
        "_target_": "testbed.core.specs.GpuSpec", "name": "h200", "device": "NVIDIA H200",
        "memory_bytes": 150_000_000_000, "memory_bandwidth": 4.8e12, "fp16_flops": 989.0e12,
        "host_bandwidth": 55.0e9, "link_bandwidth": 450.0e9,
    }  # fmt: skip
    return {
        "_target_": "testbed.core.specs.ServerSpec", "name": "h200-x1", "gpu": gpu, "num_gpus": 1,
        "kv_memory_gib": {model: pool_gib},
    }  # fmt: skip


def measured(model: str, kernel: str) -> Node:
    """Measured prices, and nothing told beside them."""
    choices = {"_target_": "testbed.cost.profile.Choices", "block_size": 16, "kernel": kernel, "spread": "ragged"}
    return {"_target_": "testbed.cost.profile.ProfileCost", "path": f"h200-{model}-tp1", "choices": choices}


def guessed(model: str, kernel: str) -> Node:
    """A data sheet's prices, for models that nobody has measured."""
    efficiencies = {"_target_": "testbed.cost.analytic.Efficiencies"}
    return {"_target_": "testbed.cost.analytic.AnalyticCost", "efficiencies": efficiencies}


PAGED = {"_target_": "testbed.memory.paged.paged.Paged", "block_size": 16, "watermark": 0.01}
PREFIXES = {
    "_target_": "testbed.memory.prefix_cache.prefix_caching.PrefixCaching", "block_size": 16, "watermark": 0.01,
    "eviction": {"_target_": "testbed.memory.prefix_cache.eviction.lru.Lru"},
}  # fmt: skip
SHAREGPT = {"_target_": "traces.synthetic.Fitted", "model": "sharegpt"}


def contiguous(rule: str) -> Node:
    """Contiguous memory by one of the three rules of Orca."""
    return {"_target_": f"testbed.memory.contiguous.contiguous.Contiguous{rule}", "block_size": 16}


AZURE_TRACE = {"_target_": "traces.azure.AzureCsv", "path": AZURE}
CHATS = {
    "_target_": "traces.chat_histories.ChatHistories", "model": "chat", "new_probability": 0.2, "max_prompt": 7000,
    "max_output": 1016,
}  # fmt: skip

KNEE = 7.57  # req/s that opt-13b sustains at most with 12 GiB and ShareGPT, simulated with the shipped profile
HALF = 0.5 * KNEE


def _sharegpt(name: str, about: str, rate: float, policy: Node, **more: Any) -> Pair:
    return Pair(name, f"ShareGPT, {about}", "opt-13b", round(rate, 2), policy, SHAREGPT, max_len=2048, **more)


PAIRS = [
    *(
        _sharegpt(f"paged-{share}", f"paged at {share}% of the knee", share / 100 * KNEE, PAGED)
        for share in (50, 80, 95)
    ),
    _sharegpt("paged-120", "paged at 120%, recompute", 1.2 * KNEE, PAGED),
    _sharegpt("swap-120", "paged at 120%, swap", 1.2 * KNEE, PAGED, preemption="Swap", swap_space_gib=8.0),
    _sharegpt("contiguous-max", "contiguous max at 50%", HALF, contiguous("Max"), kernel="contiguous"),
    _sharegpt("contiguous-pow2", "contiguous pow2 at 50%", HALF, contiguous("Pow2"), kernel="contiguous"),
    _sharegpt("contiguous-oracle", "contiguous oracle at 50%", HALF, contiguous("Oracle"), kernel="contiguous"),
    Pair("azure", "Azure conversations, 1.8 times as fast", "llama-3-8b", 1.8, PAGED, AZURE_TRACE, replay=True),
    Pair("chats", "chat histories, prefix cache", "llama-3-8b", 10.0, PREFIXES, CHATS),
]


def device() -> Stage:
    """On a GPU: 30 s of arrivals, the paper's pool for opt-13b."""
    engine = {"device": "cuda", "dtype": "float16", "graphs": 128, "out": "engine-run"}
    models = {name: read_model(name) for name in ("opt-13b", "llama-3-8b")}
    return Stage(
        30.0,
        models,
        {"opt-13b": 12.0, "llama-3-8b": 16.0},
        engine,
        measured,
        warm=(*range(1, 513), *range(520, 2561, 40)),  # products by kernels that are loaded when first used
    )


def rehearsal() -> Stage:
    """The same runs on a CPU, in seconds: tiny models of both families, short requests, few of them."""
    opt = ModelSpec("opt-13b", 1, 16, 2, 2, 8, 16, 2, 61, 256, True)
    llama = ModelSpec("llama-3-8b", 1, 16, 2, 1, 8, 16, 3, 61, 8192)
    engine = {"device": "cpu", "dtype": "float32", "graphs": 0, "out": "engine-run"}
    gib = {spec.name: 4096 * spec.kv_bytes_per_token / 2**30 for spec in (opt, llama)}
    return Stage(
        1.0,
        {"opt-13b": opt, "llama-3-8b": llama},
        gib,
        engine,
        guessed,
        rates=4.0,
        longest=200,
        warm=(16, 200),
        batches=(1, 4),
    )
