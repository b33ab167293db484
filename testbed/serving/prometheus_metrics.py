"""Counts and times of answers as Prometheus reads them, under vLLM's names; times are those of the
engine's clock. Each sequence counts as a request, as in vLLM; only request_params_n is of the
clients' requests.
"""

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

MODEL = "model_name"
# The limits of vLLM's histograms, in s
SECONDS = (1, 2.5, 5, 7.5, 10, 20, 40, 80)
FIRST_S = (*(ms / 1000 for ms in (1, 5, 10, 20, 40, 60, 80, 100, 250, 500, 750)), *SECONDS)
FIRST_S += (160, 640, 2560)
LATER_S = (*(ms / 1000 for ms in (10, 25, 50, 75, 100, 150, 200, 300, 400, 500, 750)), *SECONDS)
MINUTES_S = (60, 120, 240, 480, 960, 1920, 7680)
NUM_SEQS = (1, 2, 5, 10, 20)
WHOLE_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, *MINUTES_S)


class Metrics:
    """Counts and times of one server, labelled with the model's name; others may add to its
    registry.
    """

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry()
        self.model = model
        self._first = self._seconds("time_to_first_token", "to the first token", FIRST_S)
        self._later = self._seconds("inter_token_latency", "between tokens", LATER_S)
        self._whole = self._seconds("e2e_request_latency", "to the last token", WHOLE_S)
        self._num_seqs = self._histogram(
            "request_params_n", "Sequences of a request of a client.", NUM_SEQS
        )
        self._prompt_tokens = self._counter(
            "prompt_tokens", "prompt tokens of requests that have a token"
        )
        self._output_tokens = self._counter("generation_tokens", "generated tokens")
        self._success = self._counter("request_success", "requests with their whole output")

    def first_token(self, prompt_len: int, ttft_s: float, num_seqs: int) -> None:
        """Each of a request's sequences has its first token."""
        for _ in range(num_seqs):
            self._first.observe(ttft_s)
        self._prompt_tokens.inc(prompt_len * num_seqs)

    def later_token(self, gap_s: float, num_seqs: int) -> None:
        """Each of them has another one."""
        for _ in range(num_seqs):
            self._later.observe(gap_s)

    def tokens(self, num_tokens: int) -> None:
        self._output_tokens.inc(num_tokens)

    def finished(self, latency_s: float, num_seqs: int) -> None:
        """All of them have their whole output."""
        for _ in range(num_seqs):
            self._whole.observe(latency_s)
        self._success.inc(num_seqs)
        self._num_seqs.observe(num_seqs)

    def text(self) -> bytes:
        """The page in Prometheus's text format."""
        return generate_latest(self.registry)

    def _seconds(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        return self._histogram(
            f"{name}_seconds", f"Seconds {about}, by the engine's clock.", buckets
        )

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        limits: list[float | str] = [*buckets]
        histogram = Histogram(f"vllm:{name}", text, [MODEL], buckets=limits, registry=self.registry)
        return histogram.labels(self.model)

    def _counter(self, name: str, about: str) -> Counter:
        counter = Counter(f"vllm:{name}", f"Number of {about}.", [MODEL], registry=self.registry)
        return counter.labels(self.model)
