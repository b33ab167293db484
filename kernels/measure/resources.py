"""`python -m kernels.measure.resources SOURCE KEY=VALUE ... [--arch sm_90a]`: registers and spills, without a GPU."""

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass

from kernels.launch.compile import require_cupy, source_text

ENTRY = re.compile(
    r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    r".*?Used (\d+) registers", re.DOTALL)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel of a source takes; `notes` are the assembler's warnings."""

    kernel: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    notes: str = ""


def resources(source: str, defines: Mapping[str, int], arch: str) -> list[Resources]:
    """The assembler's report on every kernel of a variant."""
    require_cupy()
    from cupy.cuda import nvrtc

    options = [f"-arch={arch}", "-std=c++17", "--ptxas-options=-v", *(f"-D{k}={v}" for k, v in sorted(defines.items()))]
    program = nvrtc.createProgram(source_text(source), source, (), ())
    try:
        nvrtc.compileProgram(program, tuple(options))
        log = nvrtc.getProgramLog(program)
    except nvrtc.NVRTCError:
        raise RuntimeError(nvrtc.getProgramLog(program)) from None
    finally:
        nvrtc.destroyProgram(program)
    notes = "\n".join(line for line in log.splitlines() if "(C7" in line)
    found = [(name, *map(int, numbers)) for name, *numbers in ENTRY.findall(log)]
    return [Resources(name, regs, stores + loads, stack, notes) for name, stack, stores, loads, regs in found]


def main() -> None:
    """Print one line a kernel."""
    parser = argparse.ArgumentParser("python -m kernels.measure.resources", description=__doc__)
    parser.add_argument("source")
    parser.add_argument("defines", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--arch", default="sm_90a")
    options = parser.parse_args()
    defines = {key: int(value) for key, _, value in (define.partition("=") for define in options.defines)}
    for one in resources(options.source, defines, options.arch):
        print(f"{one.kernel}: {one.registers} registers, {one.spill_bytes} bytes spilled, {one.stack_bytes} of stack")
        if one.notes:
            print(one.notes)


if __name__ == "__main__":
    main()
