"""The server of a SGLang command whose words name the model and the GPU."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from testbed.core.errors import DoesNotStart, InputError
from testbed.core.specs import ModelSpec
from testbed.experiments.vllm_server.named import Named, gpu_named, model_named
from testbed.experiments.vllm_server.named_server import started as one_that_starts
from testbed.sglang.command import Command
from testbed.sglang.option_table import notes_of
from testbed.sglang.pool import class_of
from testbed.sglang.server import Server, server_with
from testbed.vllm.checkpoints import quantization_in

PARALLELISM = "--tp-size"


def server_of(
    command: Command,
    gpu: str | None,
    folders: Sequence[Path] = (),
    *,
    for_memory: bool = False,
) -> Server:
    """The server of a command on a GPU. Raises InputError for an option that changes the answer and
    is not modelled, and if SGLang would refuse to start.

    for_memory: only memory is asked for, so that options which change only time are read over.
    """
    notes = notes_of(command, for_memory=for_memory)
    sheet = gpu_named(gpu, folders)
    named = _named(command, folders)
    server = server_with(command, _cached_by_sglang(named), sheet, _class_of(named))
    cached = named.shape.kv_dtype_bytes
    return replace(server, option=named.option, notes=notes, cached_bytes=cached)


def _named(command: Command, folders: Sequence[Path]) -> Named:
    """The model of a command. Raises InputError for a config.json with which vLLM does not start,
    which says nothing of SGLang.
    """
    try:
        return model_named(command.values.get("--model-path"), folders)
    except DoesNotStart as error:
        problem = "no class of vLLM takes it, and SGLang's own are not modelled"
        raise InputError(key=error.key, value=error.value, problem=problem) from error


def started(
    command: Command, gpu: str | None, folders: Sequence[Path], *, for_memory: bool = False
) -> Server:
    """The server of a command; one that does not start says the --tp-size that is enough."""
    start = partial(server_of, gpu=gpu, folders=folders, for_memory=for_memory)
    return one_that_starts(
        lambda: start(command), lambda degree: start(divided(command, degree)), PARALLELISM
    )


def divided(command: Command, degree: int) -> Command:
    """The same command with another tensor parallelism."""
    return replace(command, values={**command.values, PARALLELISM: str(degree)})


def _cached_by_sglang(named: Named) -> ModelSpec:
    """The shape with the cache that SGLang makes: in the model's type, whatever scheme of a cache
    llm-compressor's file has (configure_kv_cache_dtype).
    """
    is_json = named.config is not None and named.config.suffix == ".json"
    values = quantization_in(named.config).values if named.config and is_json else {}
    is_compressed = values.get("quant_method") == "compressed-tensors"
    return replace(named.shape, kv_dtype_bytes=None) if is_compressed else named.shape


def _class_of(named: Named) -> str:
    """The class of the model that its config.json names, or that is known of one that ships."""
    if named.config is None or named.config.suffix != ".json":
        return class_of(named.shape)
    config = json.loads(named.config.read_text(encoding="utf-8"))
    architectures = config.get("architectures")
    is_list = isinstance(architectures, list) and architectures
    return str(architectures[0]) if is_list else class_of(named.shape)
