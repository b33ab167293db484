"""What Prometheus reads, under vLLM's names; times are those of the engine's clock."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from testbed.serving.live import Live

MODEL = "model_name"
# The limits of vLLM's histograms, in s
SECONDS = (1, 2.5, 5, 7.5, 10, 20, 40, 80)
FIRST_S = (*(ms / 1000 for ms in (1, 5, 10, 20, 40, 60, 80, 100, 250, 500, 750)), *SECONDS)
FIRST_S += (160, 640, 2560)
LATER_S = (*(ms / 1000 for ms in (10, 25, 50, 75, 100, 150, 200, 300, 400, 500, 750)), *SECONDS)
WHOLE_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)


class Metrics:
    """Counts and times of one server, each labelled with the model's name."""

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry()
        self.model = model
        self._first = self._histogram("time_to_first_token_seconds", "to the first token", FIRST_S)
        self._later = self._histogram("inter_token_latency_seconds", "between tokens", LATER_S)
        self._whole = self._histogram("e2e_request_latency_seconds", "to the last token", WHOLE_S)
        self._prompt_tokens = self._counter("prompt_tokens", "prompt tokens of ended requests")
        self._output_tokens = self._counter("generation_tokens", "generated tokens")
        self._success = self._counter("request_success", "requests with their whole output")

    def observe(self, live: "Live", pool: Mapping[str, str]) -> None:
        """Read the engine's state too, whenever Prometheus asks. pool: labels of vLLM's that say
        its size; empty where it has none in blocks.
        """
        self.registry.register(EngineState(live, self.model))
        if pool:
            text = "The pool of an engine, as vLLM's CacheConfig."
            names = [MODEL, *pool]
            info = Gauge("vllm:cache_config_info", text, names, registry=self.registry)
            info.labels(self.model, *pool.values()).set(1)

    def first_token(self, ttft_s: float) -> None:
        self._first.observe(ttft_s)

    def later_token(self, gap_s: float) -> None:
        self._later.observe(gap_s)

    def tokens(self, num_tokens: int) -> None:
        self._output_tokens.inc(num_tokens)

    def finished(self, prompt_len: int, latency_s: float) -> None:
        self._whole.observe(latency_s)
        self._prompt_tokens.inc(prompt_len)
        self._success.inc()

    def text(self) -> bytes:
        """The page in Prometheus's text format."""
        return generate_latest(self.registry)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        text = f"Seconds {about}, by the engine's clock."
        limits: list[float | str] = [*buckets]
        made = Histogram(f"vllm:{name}", text, [MODEL], buckets=limits, registry=self.registry)
        return made.labels(self.model)

    def _counter(self, name: str, about: str) -> Counter:
        counter = Counter(f"vllm:{name}", f"Number of {about}.", [MODEL], registry=self.registry)
        return counter.labels(self.model)


class EngineState(Collector):
    """What the engine knows when it is asked."""

    def __init__(self, live: "Live", model: str) -> None:
        self._live = live
        self._model = model

    def collect(self) -> Iterable[Metric]:
        live, state = self._live, self._live.state
        yield self._gauge("vllm:num_requests_running", "Running requests.", state.running)
        yield self._gauge("vllm:num_requests_waiting", "Waiting requests.", state.waiting)
        share = "Share of the pool that is held."
        yield self._gauge("vllm:kv_cache_usage_perc", share, state.kv_usage)
        yield self._counter("vllm:num_preemptions", "Preempted requests.", state.preemptions)
        yield self._counter("testbed:cancelled", "Cancelled requests.", live.num_cancelled)
        if live.lags is not None:
            lag = "Real s by which the simulation is behind"
            yield self._gauge("testbed:lag_seconds", f"{lag} now.", live.lags[0])
            yield self._gauge("testbed:max_lag_seconds", f"{lag} at most.", live.lags[1])

    def _gauge(self, name: str, about: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, about, labels=[MODEL])
        family.add_metric([self._model], value)
        return family

    def _counter(self, name: str, about: str, value: float) -> Metric:
        family = CounterMetricFamily(name, about, labels=[MODEL])
        family.add_metric([self._model], value)
        return family
