"""Prometheus metrics of an engine's state and of the size of its pool, under vLLM's names."""

from collections.abc import Iterable, Mapping

from prometheus_client import Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from testbed.serving.live import Live
from testbed.serving.prometheus_metrics import MODEL, Metrics


def show_engine(metrics: Metrics, live: Live, pool: Mapping[str, str]) -> None:
    """Add the engine's state to the metrics; it is read whenever Prometheus asks.

    pool: vLLM's labels for the size of the pool; empty if the pool has no blocks.
    """
    metrics.registry.register(EngineState(live, metrics.model))
    if pool:
        text = "The pool of an engine, as vLLM's CacheConfig."
        names = [MODEL, *pool]
        info = Gauge("vllm:cache_config_info", text, names, registry=metrics.registry)
        info.labels(metrics.model, *pool.values()).set(1)


class EngineState(Collector):
    """Reads the engine's state when Prometheus asks."""

    def __init__(self, live: Live, model: str) -> None:
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
