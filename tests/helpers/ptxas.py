"""The assembler's report on the kernels of a source: registers, spills, warnings. No GPU
needed.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

import pytest

from testbed.kernels.launch.compile import source_text

ENTRY = re.compile(
    r"(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers", re.DOTALL
)


class Resources(NamedTuple):
    """The resources of one kernel of a source; `notes` are the assembler's warnings."""

    registers: int
    spill_bytes: int
    notes: str


def require_nvrtc() -> None:
    """Skip the test, or the whole module, if NVIDIA's compiler of CUDA is missing."""
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from cupy.cuda import nvrtc

    try:
        nvrtc.getVersion()
    except Exception as error:  # of several libraries, by the way in which it is missing
        pytest.skip(f"NVRTC is not usable: {error}", allow_module_level=True)


def resources(source: str, defines: Mapping[str, int], arch: str) -> list[Resources]:
    """The assembler's report on every kernel of a variant."""
    require_nvrtc()
    from cupy.cuda import nvrtc

    options = [
        f"-arch={arch}",
        "-std=c++17",
        "--ptxas-options=-v",
        *(f"-D{k}={v}" for k, v in defines.items()),
    ]
    program = nvrtc.createProgram(source_text(source), source, (), ())
    try:
        nvrtc.compileProgram(program, tuple(options))
        log = nvrtc.getProgramLog(program)
    finally:
        nvrtc.destroyProgram(program)
    notes = "\n".join(line for line in log.splitlines() if "(C7" in line)
    return [
        Resources(int(used), int(stores) + int(loads), notes)
        for stores, loads, used in ENTRY.findall(log)
    ]
