"""The server of a command whose words name the model, the GPU and the drafter."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from testbed.core.errors import DoesNotStart, InputError
from testbed.core.hf_config import contents_of, text_of, unsized_parts
from testbed.core.specs import ModelSpec
from testbed.experiments.vllm_server.hosts import starting
from testbed.experiments.vllm_server.named import Named, gpu_named, model_named
from testbed.experiments.vllm_server.speculative_config import speculative_of
from testbed.vllm.checkpoints import OPTION as QUANTIZATION
from testbed.vllm.checkpoints import check_checkpoint, quantization_in
from testbed.vllm.command import ON, Command
from testbed.vllm.limits import Limits
from testbed.vllm.memory import Terms
from testbed.vllm.option_reader import check_release, notes_of
from testbed.vllm.releases import DEFAULT, Release
from testbed.vllm.server import (
    Checkpoint,
    Server,
    Speculative,
    limits_and_utilization,
    server_with,
)

TEXT_ALONE = "--language-model-only"
LARGEST_PARALLELISM = 64
PARALLELISM = "--tensor-parallel-size"
Started = TypeVar("Started")


def server_of(
    command: Command,
    gpu: str | None,
    folders: Sequence[Path] = (),
    *,
    release: Release = DEFAULT,
    of: Terms | None = None,
    for_memory: bool = False,
) -> Server:
    """The server of a command on a GPU. Raises InputError for an option that changes the answer and
    is not modelled, and if vLLM would refuse to start.

    of: terms of the memory (default: those that ship). for_memory: only memory is asked for, so
    that options which change only time are read over.
    """
    check_release(command, release)
    notes = notes_of(command, for_memory)
    sheet = gpu_named(gpu, folders)
    named = model_named(command.model, folders, transformers=release.transformers)
    if named.config is not None:
        check_checkpoint(named.config, release, command.values.get(QUANTIZATION))
        _check_parts(command, named.config, named.shape)
    drafts = command.values.get("--speculative-config")
    speculative = speculative_of(drafts, named.shape, release, folders)
    speculation = None if speculative is None else speculative.speculation
    server = server_with(command, _checkpoint(named), sheet, release, of, speculation)
    cached = named.shape.kv_dtype_bytes
    own = replace(server, option=named.option, cached_bytes=cached, remarks=_remarks(named))
    return replace(own, notes=notes, speculative=_with_effects(speculative, own, release))


def _check_parts(command: Command, path: Path, shape: ModelSpec) -> None:
    """Raise InputError for parts beside the language model that a server loads, and whose weights
    are not known.
    """
    config = contents_of(path)
    if command.values.get(TEXT_ALONE) == ON:
        config.pop("vision_config", None)
    parts = unsized_parts(config, shape)
    if parts:
        raise InputError(
            key=path,
            problem=f"the weights of {'; '.join(parts)} are not known here",
            remedy=f"{TEXT_ALONE} leaves out images alone; else write the ModelSpec by hand",
        )


def _remarks(named: Named) -> tuple[str, ...]:
    """The assumption on a config.json that names no class, which vLLM chooses by the model_type."""
    if named.config is None or contents_of(named.config).get("architectures"):
        return ()
    return (
        "the class that generates text, for config.json names none (architectures): vLLM may take "
        "one for embeddings, without a head and a prefix cache",
    )


def _with_effects(
    speculative: Speculative | None, server: Server, release: Release
) -> Speculative | None:
    """The speculation, with notes on what its drafter takes of the server's positions and
    iterations.
    """
    drafter = None if speculative is None else speculative.speculation.drafter(server.model)
    if speculative is None or drafter is None:
        return speculative
    notes = list(speculative.notes)
    if drafter.max_len < server.asked_len:
        notes.append(_of_positions(drafter, release))
    limits, num_inserted = server.limits, speculative.speculation.num_inserted
    if num_inserted and not release.admits_with_drafts:
        left = limits.max_num_batched_tokens - num_inserted * limits.max_num_seqs
        notes.append(
            f"iterations take {left:,} tokens, for the drafter's batch has one more for each of "
            f"{limits.max_num_seqs:,} sequences"
        )
    return speculative._replace(notes=tuple(notes))


def _of_positions(drafter: ModelSpec, release: Release) -> str:
    """The note on a drafter with fewer positions than the server's."""
    positions = f"the {drafter.max_len:,} positions of {drafter.name}"
    if release.caps_by_drafter:
        return f"no sequence is longer than {positions} (another drafter may have more)"
    return f"drafts go on beyond {positions}, where vLLM {release.number} stops them"


def _checkpoint(named: Named) -> Checkpoint:
    """The shape of a name, with what its config.json says or, of one that ships, the name."""
    if named.config is None:
        return Checkpoint(named.shape, quantization=named.quantization)
    config = contents_of(named.config)
    text, _ = text_of(config)
    return Checkpoint(
        named.shape,
        str(config.get("model_type", "")),
        text["model_type"],
        quantization=quantization_in(named.config),
    )


def smallest_degree(start: Callable[[int], object]) -> int | None:
    """The smallest tensor parallelism with which `start` raises no InputError, of powers of two up
    to LARGEST_PARALLELISM; None: there is none.
    """
    degree = 1
    while degree <= LARGEST_PARALLELISM:
        with suppress(InputError):
            start(degree)
            return degree
        degree *= 2
    return None


def started(
    start: Callable[[], Started], divided: Callable[[int], object], option: str = PARALLELISM
) -> Started:
    """The server that `start` gives; the DoesNotStart of one that does not start says the value of
    the option, a tensor parallelism, with which `divided` gives one.
    """
    try:
        return start()
    except DoesNotStart as error:
        refusal = error
    smallest = smallest_degree(divided)
    if smallest is None:
        raise refusal
    raise refusal.with_remedy(starting(option, smallest))


def sized_server(command: Command, gpu: str) -> tuple[ModelSpec, Limits, float]:
    """The model as it is served, the limits and the utilization of a command, whether or not it
    starts.
    """
    return limits_and_utilization(command, model_named(command.model).shape, gpu_named(gpu))
