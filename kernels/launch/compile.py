"""Source file + compile-time constants + architecture -> machine code, cached on disk -> CuPy
kernel.

NVRTC is called with an explicit architecture, which needs neither a driver nor a CUDA header, so
that a machine without a GPU compiles in the same way (tests compile every variant).
"""

import hashlib
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parents[1] / "src"
INCLUDE = re.compile(r'^#include "([^"]+)"$', re.MULTILINE)


class KernelsUnavailable(RuntimeError):
    """The kernels cannot run here; the message names in one line what is missing."""


def require_cupy() -> Any:
    """CuPy, or an error that names what is missing."""
    try:
        import cupy
    except ImportError as error:
        raise KernelsUnavailable(
            f"CuPy is missing ({error}): install cupy-cuda13x (or cupy-cuda12x)"
        ) from None
    return cupy


@cache
def require_gpu() -> Any:
    """CuPy on a machine with a driver and a GPU, or an error that names what is missing."""
    cupy = require_cupy()
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise KernelsUnavailable(f"no NVIDIA driver or GPU is usable: {error}") from None
    if count < 1:
        raise KernelsUnavailable("the NVIDIA driver lists no GPU")
    return cupy


@cache
def multiprocessors() -> int:
    """The multiprocessors of the current device, cached because a driver call takes longer than a
    launch.
    """
    return int(require_gpu().cuda.Device().attributes["MultiProcessorCount"])


@cache
def compute_capability() -> int:
    """The compute capability of the current device, such as 90."""
    return int(require_gpu().cuda.Device().compute_capability)


def source_text(source: str) -> str:
    """A .cu file with its headers inlined, so that one hash covers all of it."""
    text = (SOURCES / source).read_text()
    return INCLUDE.sub(
        lambda match: (SOURCES / match[1]).read_text().replace("#pragma once", ""), text
    )


def compile_cubin(source: str, defines: Mapping[str, int], arch: str) -> bytes:
    """Machine code of one variant for an architecture such as "sm_90"; needs no GPU."""
    require_cupy()
    from cupy.cuda import nvrtc

    options = (
        f"-arch={arch}",
        "-std=c++17",
        *(f"-D{key}={value}" for key, value in sorted(defines.items())),
    )
    program = nvrtc.createProgram(source_text(source), source, (), ())
    try:
        nvrtc.compileProgram(program, options)
        return bytes(nvrtc.getCUBIN(program))
    except nvrtc.NVRTCError:
        log = nvrtc.getProgramLog(program)
        raise RuntimeError(
            f"{source} with {dict(defines)} does not compile for {arch}:\n{log}"
        ) from None
    finally:
        nvrtc.destroyProgram(program)


def cubin_path(source: str, defines: Mapping[str, int], arch: str) -> Path:
    """The machine code of one variant, compiled at first use and cached; TESTBED_KERNEL_CACHE
    overrides the folder.
    """
    from cupy.cuda import nvrtc

    identity = repr((source_text(source), sorted(defines.items()), arch, nvrtc.getVersion()))
    folder = Path(
        os.environ.get("TESTBED_KERNEL_CACHE", Path.home() / ".cache" / "kvcache-testbed")
    )
    path = (
        folder / f"{Path(source).stem}-{hashlib.sha256(identity.encode()).hexdigest()[:24]}.cubin"
    )
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(compile_cubin(source, defines, arch))
        os.replace(file.name, path)
    return path


def architecture(capability: int) -> str:
    """NVRTC's name of a compute capability such as 90; Hopper-only instructions need its "a"
    target.
    """
    return f"sm_{capability}" + ("a" if capability == 90 else "")


@cache
def _load(source: str, name: str, defines: tuple[tuple[str, int], ...], device: int) -> Any:
    arch = architecture(compute_capability())
    cubin = cubin_path(source, dict(defines), arch)
    kernel = require_gpu().RawModule(path=str(cubin)).get_function(name)
    # Reading this loads the module now: a launch under graph capture must not load it.
    kernel.num_regs  # noqa: B018
    return kernel


def load(source: str, name: str, **defines: int) -> Any:
    """The kernel `name` of a variant on the current device, compiled and loaded at first use."""
    return _load(
        source, name, tuple(sorted(defines.items())), require_gpu().cuda.runtime.getDevice()
    )


def precompile(variants: Sequence[tuple[str, Mapping[str, int]]]) -> None:
    """Compile many variants for the current device in parallel, each once, in processes that never
    use a GPU.
    """
    arch = architecture(compute_capability())
    distinct = {(source, tuple(sorted(defines.items()))) for source, defines in variants}
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for task in [
            pool.submit(cubin_path, source, dict(defines), arch)
            for source, defines in sorted(distinct)
        ]:
            task.result()
