"""The deployments that a plan compares: every combination of the words' comma-separated values."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from testbed.experiments.cli.served_command import NO_COMMAND, ServedCommand
from testbed.experiments.runs.compose import configured
from testbed.experiments.runs.notes import no_note
from testbed.experiments.runs.one_source import COST, OF_ONE_SOURCE, group_of
from testbed.experiments.runs.sweep_words import values_of
from testbed.experiments.runs.words import check_options
from testbed.run.config import RunConfig
from testbed.run.override_words import key_of

SYSTEM = "system"
USUAL_SYSTEM = "+system=vllm-v1"  # if the words name none
LABELS = {
    "gpu": "GPU",
    "server": "GPUs of an engine",
    "server.num_gpus": "TP",
    "prefill_replicas": "prefill",
    "scheduler.max_num_batched_tokens": "batched tokens",
    "model.kv_dtype_bytes": "KV bytes",
    "server.tiers.dram.size_gib": "DRAM GiB",
}


@dataclass(frozen=True, eq=False)
class Deployment:
    """A point of the space. chosen: its value on each axis; words: those of its runs, without rate
    and seed, before those of `command`, which its values change.
    """

    chosen: Mapping[str, str]
    words: tuple[str, ...]
    command: ServedCommand = NO_COMMAND

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
    def engines(self) -> list[RunConfig]:
        """Its configuration with the server of each engine."""
        return [self.config.of_engine(number) for number in range(self.config.replicas or 1)]

    @property
    def gpus(self) -> Counter[str]:
        """The number of GPUs of all its engines, by name."""
        counts = Counter[str]()
        for engine in self.engines:
            counts[engine.server.gpu.name] += engine.server.num_gpus
        return counts

    @property
    def as_simulated(self) -> RunConfig:
        """The values that decide its runs: one engine gives the same run behind every router."""
        return replace(self.config, router=None) if self.config.replicas == 1 else self.config


def deployments(words: Sequence[str], command: ServedCommand = NO_COMMAND) -> list[Deployment]:
    """Every combination of comma-separated values, as `testbed run -m` reads them, in the words'
    order. Words without a system are of vLLM's, unless the command is of SGLang's. Raises
    InputError for an option that does not exist: no deployment has it.
    """
    if command.from_sglang is None and not any(key_of(word) == SYSTEM for word in words):
        words = [USUAL_SYSTEM, *words]
    if not any(group_of(key_of(word)) == COST for word in words):
        words = [*words, OF_ONE_SOURCE]
    choices = [values_of(word) for word in words]
    check_options([word for values in choices for word in values])
    axes = [key_of(word) for word, values in zip(words, choices, strict=True) if len(values) > 1]
    combinations = []
    for combination in product(*choices):
        values = {key_of(word): word.partition("=")[2] for word in combination}
        chosen = {key: values[key] for key in axes}
        combinations.append(Deployment(chosen, combination, command))
    return combinations


def candidate_of(deployment: Deployment) -> Candidate:
    """The candidate; raises InputError if the configuration makes no sense, or the server would
    not start.
    """
    words = tuple(deployment.command.words(deployment.words, on_note=no_note))
    return Candidate(replace(deployment, words=words, command=NO_COMMAND), configured(words))


def label_of(key: str) -> str:
    """An axis in a table's head."""
    return LABELS.get(key, key.rpartition(".")[2])
