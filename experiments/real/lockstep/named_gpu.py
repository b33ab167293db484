"""The installed vLLM on a GPU that is only named: its memory and its compute capability.

vLLM chooses limits, attention backends and block sizes by what its platform object says. Here that
object stands for a GPU that is not there; compiled kernels are names that nothing calls, and so is
FlashInfer if it is not installed, which every vLLM for NVIDIA GPUs requires.
"""

import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from tempfile import mkdtemp
from typing import Any

from testbed.core.specs import GpuSpec
from testbed.experiments.real.lockstep.installed_packages import Absent, AbsentModules
from testbed.vllm.generations import capability_of

CUDA_RUNTIME, NUM_GPUS = 13, 8
PACKAGES = ("flashinfer", "deep_gemm", "cuda")
NAMESPACES = ("_C", "_moe_C", "_C_cache_ops", "_vllm_fa2_C", "_vllm_fa3_C")
TORCHVISION: tuple[str, ...] = (
    "nms",
    "qnms",
    "roi_align",
    "roi_pool",
    "ps_roi_align",
    "ps_roi_pool",
)
TORCHVISION += ("qroi_align", "deform_conv2d", *(f"_{name}_backward" for name in TORCHVISION[2:]))
TORCHVISION += ("_deform_conv2d_backward",)
KEPT: list[Any] = []  # a library of torch's ends with its object
SUPPORTS: dict[str, Callable[[int], bool]] = {  # by compute capability x 10, as csrc/ has it
    "cutlass_scaled_mm_supports_fp4": lambda capability: capability >= 100,
    "cutlass_scaled_mm_supports_fp8": lambda capability: capability >= 89,
    "cutlass_scaled_mm_supports_block_fp8": lambda capability: capability >= 90,
    "cutlass_group_gemm_supported": lambda capability: 90 <= capability < 110,
}


def _is_kernel(name: str) -> bool:
    last = name.rpartition(".")[2]
    return name.startswith("vllm.") and (last.endswith("_C") or "_C_" in last)


class _Kernels:
    """A namespace of torch.ops: registered operators, and a stand-in for each that is compiled."""

    def __init__(self, registered: Any) -> None:
        self._registered = registered

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(self._registered, name)
        except AttributeError:
            return _Kernel(name)


class _Kernel:
    """An operator that no library has registered."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> "_Kernel":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *values: Any) -> bool:
        if self.__name__ in SUPPORTS:
            return SUPPORTS[self.__name__](*values)
        raise NotImplementedError(f"{self.__name__}: no kernel runs here")


class _Later:
    """Stands for a platform object: what vLLM's own module of CUDA imports keeps this one."""

    def __init__(self, platform: Any) -> None:
        self._platform = platform

    def __getattr__(self, name: str) -> Any:
        return getattr(self._platform, name)


def install() -> type:
    """Make the installed vLLM ready, once a process; returns the class of its platform object,
    whose `sheet` is the GPU.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # with which vLLM does not ask Triton for a driver
    os.environ["VLLM_CACHE_ROOT"] = mkdtemp(prefix="lockstep-")
    sys.meta_path.insert(0, AbsentModules(PACKAGES, _is_kernel))
    import torch

    _name_operators_of_torchvision(torch.library)
    import vllm.platforms as platforms

    named = platforms._current_platform = _Later(platforms.interface.UnspecifiedPlatform())
    from vllm.platforms import cuda

    gpu = _platform_class(cuda)
    named._platform = gpu()
    import vllm._custom_ops  # noqa: F401  registers what it can before stand-ins answer
    from vllm.model_executor.models import registry

    for name in NAMESPACES:
        setattr(torch.ops, name, _Kernels(getattr(torch.ops, name)))
    for name in ("Stream", "Event"):
        setattr(torch.cuda, name, Absent(name, (), {}))
    torch.cuda.current_device = lambda: 0
    torch.accelerator.empty_cache = lambda: None
    _read_files_once()
    _count_gpus()
    registry._run_in_subprocess = lambda function: function()
    return gpu


def _count_gpus() -> None:
    """Let releases that ask CUDA itself for the number of GPUs find as many as the platform has."""
    from vllm.config import parallel

    if hasattr(parallel, "cuda_device_count_stateless"):
        parallel.cuda_device_count_stateless = lambda: NUM_GPUS


def _read_files_once() -> None:
    """Let vLLM not wait and read a file on the disk again that it has refused."""
    from vllm.transformers_utils import repo_utils

    repo_utils.with_retry.__defaults__ = (1, 0, *(repo_utils.with_retry.__defaults__ or ())[2:])


def _name_operators_of_torchvision(library: Any) -> None:
    """Name what torchvision's Python code expects of its compiled part, which needs CUDA's."""
    if find_spec("torchvision") is None:
        return
    operators = library.Library("torchvision", "DEF")
    for name in TORCHVISION:
        operators.define(f"{name}(Tensor boxes) -> Tensor")
    KEPT.append(operators)


def _platform_class(cuda: Any) -> type:
    """vLLM's platform of NVIDIA GPUs, which asks no driver."""
    from vllm.platforms.interface import DeviceCapability

    class NamedGpu(cuda.NonNvmlCudaPlatform):  # type: ignore[misc]
        sheet: GpuSpec

        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            return DeviceCapability(*capability_of(cls.sheet))

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return cls.sheet.device or cls.sheet.name

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return cls.sheet.memory_bytes

        @classmethod
        def get_cuda_runtime_major(cls) -> int:
            return CUDA_RUNTIME

        @classmethod
        def num_compute_units(cls, device_id: int = 0) -> int:
            return 132  # of no number that is compared

        @classmethod
        def device_count(cls) -> int:
            return NUM_GPUS

        @classmethod
        def is_fully_connected(cls, physical_device_ids: list[int]) -> bool:
            return True

        @classmethod
        def is_pin_memory_available(cls) -> bool:
            return False

    return NamedGpu
