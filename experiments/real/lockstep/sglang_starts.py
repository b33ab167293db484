"""Pools that the installed SGLang computes, on a GPU that is only named.

Its own are the parser, all that it resolves of the options, the model's configuration, and the
pool's arithmetic. The GPU is a name, its memory and its compute capability; the free memory before
and after the weights, which SGLang measures, is given. A process for each GPU, since SGLang keeps
what it has seen of one.
"""

import json
import logging
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

from testbed.core.errors import InputError
from testbed.experiments.real.lockstep.sglang_installation import import_quietly, installed_release

MIB = 1 << 20
# Of a configurator, what a run has and a start has not
ABSENT = dict.fromkeys(
    (
        "pp_group",
        "forward_stream",
        "req_to_token_pool",
        "token_to_kv_pool_allocator",
        "memory_pool_config",
    )
)


@dataclass(frozen=True)
class NamedGpu:
    """Facts of a GPU that SGLang reads; memory_mib: as nvidia-smi prints it."""

    device: str
    memory_mib: float
    capability: tuple[int, int]


@dataclass(frozen=True)
class Start:
    """A command's words behind `sglang serve`, and the GiB that are free before and after its
    weights are loaded.
    """

    words: tuple[str, ...]
    free_before: float
    free_after: float


@dataclass(frozen=True)
class Started:
    """Values that SGLang computes. swa_tokens: of the pool of layers with a window; None without
    such a pool. error: why it does not start; empty if it does.
    """

    page_size: int = 0
    chunked_prefill_size: int = 0
    mem_fraction_static: float = 0.0
    max_total_num_tokens: int = 0
    swa_tokens: int | None = None
    max_running_requests: int = 0
    context_len: int = 0
    error: str = ""


def installed_starts(gpu: NamedGpu, starts: Sequence[Start]) -> list[Started]:
    """Values that the installed SGLang computes for each of the starts. Raises InputError if it is
    not installed or does not run.
    """
    installed_release()
    question = json.dumps({"gpu": asdict(gpu), "starts": [asdict(start) for start in starts]})
    answer = subprocess.run(
        [sys.executable, "-m", __name__], input=question, capture_output=True, text=True
    )
    if answer.returncode:
        raise InputError(
            key="sglang", problem=f"ended with {(answer.stderr.splitlines() or ['no message'])[-1]}"
        )
    return [Started(**values) for values in json.loads(answer.stdout.splitlines()[-1])]


def _name_gpu(gpu: NamedGpu) -> None:
    """Let torch report the GPU, before SGLang asks; what it asks later is its memory."""
    import torch

    sheet = SimpleNamespace(
        total_memory=int(gpu.memory_mib * MIB),
        major=gpu.capability[0],
        minor=gpu.capability[1],
        multi_processor_count=132,
        name=gpu.device,
    )
    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: 8
    cuda.current_device = lambda: 0
    cuda.get_device_capability = lambda *device: gpu.capability
    cuda.get_device_properties = lambda *device: sheet
    cuda.get_device_name = lambda *device: gpu.device
    cuda.mem_get_info = lambda *device: (sheet.total_memory, sheet.total_memory)
    torch.version.cuda = "13.0"
    import_quietly()
    import sglang.srt.utils.common as common

    common.get_nvgpu_memory_capacity = lambda: gpu.memory_mib


def _started(start: Start) -> Started:
    try:
        return _computed(start)
    except SystemExit:
        return Started(error="its parser refuses the command")
    except Exception as error:
        return Started(error=(str(error).splitlines() or [type(error).__name__])[0])


def _computed(start: Start) -> Started:
    from sglang.srt.runtime_context import get_context, get_schedule
    from sglang.srt.server_args import prepare_server_args

    arguments = prepare_server_args([*start.words, "--skip-tokenizer-init"])
    arguments.resolve_once()
    arguments.check_server_args()
    get_context().set_server_args(arguments)
    schedule = get_schedule()
    config, context_len = _pool(arguments, start)
    return Started(
        page_size=schedule.page_size,
        chunked_prefill_size=schedule.chunked_prefill_size,
        mem_fraction_static=schedule.mem_fraction_static,
        max_total_num_tokens=config.max_total_num_tokens,
        swa_tokens=config.swa_max_total_num_tokens,
        max_running_requests=config.max_running_requests,
        context_len=context_len,
    )


def _pool(arguments: Any, start: Start) -> tuple[Any, int]:
    """SGLang's MemoryPoolConfig, and the longest sequence of its model."""
    import sglang.srt.mem_cache.kv_cache_configurator as configurator
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.runtime_context import get_parallel

    model = ModelConfig.from_server_args(arguments)
    configurator.get_available_gpu_memory = lambda *values, **named: start.free_after
    with get_parallel().override(world_group=SimpleNamespace(cpu_group=None)):
        values = {**_layer_values(model), **_cache_values(model), **ABSENT}
        pools = configurator.KVCacheConfigurator(
            device="cuda",
            gpu_id=0,
            attn_dp_size=1,
            pp_size=1,
            model_config=model,
            server_args=arguments,
            is_draft_worker=False,
            post_capture_kv_active=False,
            **values,
        )
        return pools._resolve_memory_pool_config(start.free_before), model.context_len


def _layer_values(model: Any) -> dict[str, Any]:
    """The values that SGLang reads of the layers of a model that is not built."""
    from sglang.srt.configs.model_config import AttentionArch
    from sglang.srt.model_executor.model_runner_components.layer_setup import resolve_layer_indices
    from sglang.srt.model_executor.model_runner_components.load_model_utils import (
        resolve_sliding_window_size,
    )

    not_built = SimpleNamespace()
    if model.is_hybrid_swa:  # as GptOssForCausalLM says, the only such class that is modelled
        window = model.hf_text_config.sliding_window - 1
        not_built.get_attention_sliding_window_size = lambda: window
    return {
        "model": not_built,
        "spec_aux_config": not_built,
        "sliding_window_size": resolve_sliding_window_size(model=not_built, model_config=model),
        "is_hybrid_swa": model.is_hybrid_swa,
        "is_hybrid_swa_compress": model.is_hybrid_swa_compress,
        "use_mla_backend": model.attention_arch == AttentionArch.MLA,
        "layer_info": resolve_layer_indices(
            model=not_built, model_config=model, is_draft_worker=False
        ),
    }


def _cache_values(model: Any) -> dict[str, Any]:
    """The types of weights and cache, and the page, as SGLang reads them of its arguments."""
    from sglang.srt.mem_cache.kv_cache_dtype import configure_kv_cache_dtype
    from sglang.srt.runtime_context import get_model, get_schedule
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    asked = get_model().kv_cache_dtype
    dtype = configure_kv_cache_dtype(
        server_args_kv_cache_dtype=asked,
        model=None,
        model_dtype=model.dtype,
        is_draft_worker=False,
        is_dflash=False,
        speculative_draft_attention_backend="",
    )[1]
    return {
        "kv_cache_dtype": dtype,
        "kv_cache_dtype_str": asked,
        "model_dtype": model.dtype,
        "page_size": get_schedule().page_size,
        "spec_algorithm": SpeculativeAlgorithm.NONE,
    }


def _main() -> None:
    question = json.loads(sys.stdin.read())
    gpu = question["gpu"]
    logging.disable(logging.CRITICAL)
    _name_gpu(NamedGpu(gpu["device"], gpu["memory_mib"], tuple(gpu["capability"])))
    answers = [
        asdict(_started(Start(tuple(s["words"]), s["free_before"], s["free_after"])))
        for s in question["starts"]
    ]
    print(json.dumps(answers))


if __name__ == "__main__":
    _main()
