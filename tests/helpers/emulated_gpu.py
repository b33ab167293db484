"""A GPU that the CPU emulates: launches run the CUDA sources of kernels/src, translated to C++, in
a random schedule (tests/kernels/emulator).

Arrays are torch tensors in host memory. The logic is emulated: indexes, masks, barriers,
copies that arrive late. Not emulated: time, registers, memory order between threads.
"""

import ctypes
import hashlib
import re
import shutil
import subprocess
from functools import cache
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from testbed.kernels.launch.compile import source_text
from testbed.kernels.launch.launch import packed

EMULATOR = Path(__file__).parents[1] / "kernels" / "emulator"
COMPILER = shutil.which("g++")
FUNCTION = re.compile(  # on one line, or to the next line that is a brace
    r"^(?:template <[^\n]*>\n)?DEVICE (?:[^\n]*\}[^\n]*$|(?s:.*?)^\}$)", re.MULTILINE
)
SHARED_ARRAY = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[\];")
SHARED_VARIABLES = re.compile(r"(?<!extern )__shared__ (?:__align__\(\d+\) )?(\w+) ([^;]+);")
NUM_SMS = 12  # few, so that thread blocks have much to do


def translated(source: str) -> str:
    """A kernel's source as C++: machine instructions are the emulator's, and variables in shared
    memory are found through it.
    """
    text = FUNCTION.sub(without_instructions, source_text(source))
    text = SHARED_ARRAY.sub(r"\1* \2 = reinterpret_cast<\1*>(machine::block().shared);", text)
    return SHARED_VARIABLES.sub(shared_variables, text)


def without_instructions(function: re.Match[str]) -> str:
    """A function, unless it is one that the emulator defines."""
    text = function[0]
    return "" if re.search(r"\basm\b|__cvta_generic_to_shared", text) else text


def shared_variables(declaration: re.Match[str]) -> str:
    """References to variables of one declaration, such as `float a[4], b[2][4];`."""
    type_of, names = declaration.groups()
    lines = []
    for name in names.split(", "):
        variable, dimensions = re.fullmatch(r"(\w+)(.*)", name).groups()
        lines.append(
            f"static const char key_of_{variable} = 0; auto& {variable} = "
            f"machine::shared_variable<{type_of}{dimensions}>(&key_of_{variable});"
        )
    return " ".join(lines)


class LaunchFailed(RuntimeError):
    """No thread could go on, or one did what no machine allows."""


class EmulatedKernel:
    """A variant of a kernel, compiled for the CPU in `folder` at its first launch."""

    max_dynamic_shared_size_bytes = 48 << 10

    def __init__(self, folder: Path, source: str, name: str, defines: dict[str, int]) -> None:
        self.folder, self.source, self.name, self.defines = folder, source, name, defines

    def function(self):
        """`run` of launch.cpp."""
        text = translated(self.source)
        options = [f"-D{name}={value}" for name, value in sorted(self.defines.items())]
        identity = hashlib.sha256(repr((text, self.name, options)).encode()).hexdigest()[:16]
        library = self.folder / f"{self.name}-{identity}.so"
        if not library.exists():
            path = library.with_suffix(".inc")
            path.write_text(text)
            names = [f"-DKERNEL={self.name}", f'-DKERNEL_TEXT="{path}"']
            compile_library(library, [*options, *names])
        run = ctypes.CDLL(str(library)).run
        run.restype = ctypes.c_char_p
        return run


def compile_library(library: Path, options: list[str]) -> None:
    """The emulator with one kernel."""
    flags = ["-std=c++20", "-O1", "-march=native", "-fno-strict-aliasing", "-w", "-fPIC", "-shared"]
    command = [COMPILER, *flags, *options, "-o", library, EMULATOR / "launch.cpp"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[:4000]


class EmulatedLaunch:
    """Instead of testbed.kernels.launch.launch.Launch; each call has another schedule."""

    seeds = count()

    def __init__(self, kernel, grid, threads, arguments, shared_bytes=0) -> None:
        assert kernel.max_dynamic_shared_size_bytes >= shared_bytes
        self.kernel, self.cells = kernel, packed(arguments)
        self.grid = (*map(int, grid), 1, 1)[:3]
        self.block, self.shared_bytes = threads, shared_bytes

    @property
    def threads(self) -> int:
        """Threads of the whole grid."""
        return int(np.prod(self.grid)) * self.block

    def point(self, place: int, pointer: int) -> None:
        self.cells[place] = pointer

    def __call__(self, stream: int) -> None:
        grid = (ctypes.c_uint * 3)(*self.grid)
        cells = ctypes.c_void_p(self.cells.ctypes.data)
        seed = next(self.seeds)
        error = self.kernel.function()(grid, self.block, self.shared_bytes, cells, seed).decode()
        if error:
            raise LaunchFailed(f"{self.kernel.name}, schedule {seed}: {error}")


@cache  # which keeps it
def rows_of_memory(device: int, origin: int, head_size: int, box_rows: int) -> SimpleNamespace:
    """Instead of a tensor map: machine::MapOfRows."""
    fields = np.array([origin, head_size * 2, box_rows], np.int64)
    return SimpleNamespace(data=SimpleNamespace(ptr=fields.ctypes.data), fields=fields)


def copy_memory(target: int, source: int, num_bytes: int, kind: int, stream: int) -> None:
    """Instead of cudaMemcpyAsync."""
    ctypes.memmove(target, source, num_bytes)
