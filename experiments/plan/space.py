"""The deployments that a plan compares: every combination of the words' comma-separated values."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from testbed.core.errors import InputError
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.words import WITH_MARKS
from testbed.run.config import RunConfig
from testbed.run.override_words import key_of

SYSTEM = "system"
COST = "cost"
OF_ONE_SOURCE = "cost.iterations=null"  # whole iterations of one GPU compare with no derived costs
USUAL_SYSTEM = "+system=vllm-v1"  # where the words name none
LABELS = {
    "gpu": "GPU",
    "server.num_gpus": "TP",
    "prefill_replicas": "prefill",
    "scheduler.max_num_batched_tokens": "batched tokens",
    "model.kv_dtype_bytes": "KV bytes",
    "server.tiers.dram.size_gib": "DRAM GiB",
}


@dataclass(frozen=True, eq=False)
class Deployment:
    """A point of the space. chosen: its value on each axis; words: those of its runs, without rate
    and seed.
    """

    chosen: Mapping[str, str]
    words: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its values on the axes."""
        return " ".join(f"{key}={value}" for key, value in self.chosen.items()) or "the deployment"


@dataclass(frozen=True, eq=False)
class Candidate:
    """A deployment whose configuration makes sense."""

    deployment: Deployment
    config: RunConfig

    @property
    def num_gpus(self) -> int:
        """GPUs of all its engines."""
        return self.gpus.total()

    @property
    def gpus(self) -> Counter[str]:
        """How many GPUs all its engines have, by name."""
        counts = Counter[str]()
        for engine in range(self.config.replicas or 1):
            server = self.config.of_engine(engine).server
            counts[server.gpu.name] += server.num_gpus
        return counts

    @property
    def as_simulated(self) -> RunConfig:
        """What decides its runs: one engine gives the same run behind every router."""
        return replace(self.config, router=None) if self.config.replicas == 1 else self.config


def deployments(words: Sequence[str]) -> list[Deployment]:
    """Every combination of comma-separated values, as `testbed run -m` reads them, in the words'
    order. Words without a system are of vLLM's.
    """
    if not any(key_of(word) == SYSTEM for word in words):
        words = [USUAL_SYSTEM, *words]
    if not any(key_of(word).partition(".")[0] == COST for word in words):
        words = [*words, OF_ONE_SOURCE]
    choices = [_values_of(word) for word in words]
    axes = [key_of(word) for word, values in zip(words, choices, strict=True) if len(values) > 1]
    combinations = []
    for combination in product(*choices):
        values = {key_of(word): word.partition("=")[2] for word in combination}
        combinations.append(Deployment({key: values[key] for key in axes}, combination))
    return combinations


def candidate_of(deployment: Deployment) -> Candidate:
    """The candidate; raises InputError where the configuration makes no sense, or vLLM would not
    start.
    """
    return Candidate(deployment, configured(deployment.words))


def label_of(key: str) -> str:
    """An axis in a table's head."""
    return LABELS.get(key, key.rpartition(".")[2])


def _values_of(word: str) -> list[str]:
    """The word with each of its comma-separated values."""
    key = key_of(word)
    if word.startswith("-") or "," not in word or key in WITH_MARKS:
        return [word]
    override = _parsed(word)
    if override is None or not override.is_sweep_override():
        return [word]
    values = dict.fromkeys(_each(override))
    return [f"{override.get_key_element()}={value}" for value in values]


def _parsed(word: str) -> Override | None:
    """The word as Hydra reads it; None where it is no override, which composing reports."""
    try:
        return OverridesParser.create().parse_overrides([word])[0]
    except HydraException:
        return None


def _each(override: Override) -> Iterator[str]:
    if not override.is_discrete_sweep():
        raise InputError(
            f"{override.input_line}: has no list of values (give them with commas between)"
        )
    yield from override.sweep_string_iterator()
