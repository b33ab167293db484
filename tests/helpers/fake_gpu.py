"""A GPU that only records: arrays with an address, and launches with their arguments by name.

Names and types of a kernel's arguments are read from its CUDA source, so a wrapper that passes them
in another order, or one too few, is found.
"""

import re
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from testbed.kernels.launch.compile import SOURCES

ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "uint8": 1, "int32": 4, "int64": 8}
FIRST_ADDRESS = 0x7F12 << 32  # such as allocators give
NUM_SMS = 132  # of an H100 or H200
STREAM = 5
VALUE_TYPES = {"int": np.int32, "long long": np.int64, "float": np.float32}


@dataclass(frozen=True)
class DType:
    """The name and size of an array's type, as a CuPy array shows them."""

    name: str

    @property
    def itemsize(self) -> int:
        return ITEM_BYTES[self.name]

    def __str__(self) -> str:
        return self.name


class FakeArray:
    """Shape, strides, type and address of an array on a GPU.

    element_strides: of all dimensions; by default the array is dense.
    """

    __cuda_array_interface__ = None

    def __init__(
        self,
        *shape: int,
        dtype: str = "float16",
        element_strides: tuple[int, ...] | None = None,
        pointer: int = FIRST_ADDRESS,
    ) -> None:
        self.shape = shape
        self.dtype = DType(dtype)
        strides = element_strides or dense_strides(shape)
        self.strides = tuple(stride * self.dtype.itemsize for stride in strides)
        self.data = SimpleNamespace(ptr=pointer)

    def __getitem__(self, rows: slice) -> "FakeArray":
        """A part of a vector."""
        start, stop, _ = rows.indices(self.shape[0])
        pointer = self.data.ptr + start * self.dtype.itemsize
        return FakeArray(stop - start, dtype=self.dtype.name, pointer=pointer)


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Elements from an index to the next, of each dimension of an array without gaps."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return tuple(strides)


def int32(*shape: int, pointer: int = FIRST_ADDRESS) -> FakeArray:
    """Such as block tables and lengths."""
    return FakeArray(*shape, dtype="int32", pointer=pointer)


def int64(*shape: int) -> FakeArray:
    """Such as slot mappings."""
    return FakeArray(*shape, dtype="int64")


def float32(*shape: int) -> FakeArray:
    """Such as scales of a cache."""
    return FakeArray(*shape, dtype="float32")


def e4m3(*shape: int) -> FakeArray:
    """A cache of one byte a value, which CuPy holds as bytes."""
    return FakeArray(*shape, dtype="uint8")


def place_apart(arguments: dict[str, Any]) -> dict[str, int]:
    """Give each array of a call an address of its own, 1 MiB apart; the addresses by name."""
    arrays = {name: value for name, value in arguments.items() if isinstance(value, FakeArray)}
    for i, array in enumerate(arrays.values()):
        array.data.ptr = FIRST_ADDRESS + (i << 20)
    return {name: array.data.ptr for name, array in arrays.items()}


@dataclass(frozen=True)
class Parameter:
    """Of a kernel, as its source declares it."""

    name: str
    type: str

    @property
    def is_pointer(self) -> bool:
        return "*" in self.type or self.type == "address_t"


def parameters(source: str, kernel: str) -> list[Parameter]:
    """The parameters of a `__global__` function of kernels/src, in order."""
    text = re.sub(r"//.*", "", (SOURCES / source).read_text())
    declaration = re.search(rf"__global__[^;{{]*?\b{kernel}\(([^)]*)\)\s*{{", text)
    assert declaration, f"{source} has no kernel {kernel}"
    parts = []
    for words in declaration[1].split(","):
        type_of, name = re.fullmatch(r"\s*(.*?)(\w+)\s*", words, re.DOTALL).groups()
        parts.append(Parameter(name, " ".join(type_of.replace("__restrict__", "").split())))
    return parts


@dataclass(frozen=True)
class RecordedLaunch:
    """The launches that the driver would have got."""

    source: str
    kernel: str
    defines: dict[str, int]
    grid: tuple[int, ...]
    threads: int
    shared_bytes: int
    arguments: dict[str, Any]


@dataclass
class FakeKernel:
    """A kernel that was asked for; it gets its limit of shared memory before it is launched."""

    source: str
    name: str
    defines: dict[str, int]
    max_dynamic_shared_size_bytes: int = 48 << 10  # the driver's default


class FakeGpu:
    """Stands in for CuPy, and for kernels and launches of our own."""

    def __init__(self) -> None:
        self.launches: list[RecordedLaunch] = []
        self.copies: list[tuple[int, ...]] = []
        self.log: list[str] = []  # "launch" and "copy", in the order of the calls
        runtime = SimpleNamespace(getDevice=lambda: 0, memcpyAsync=self._copy)
        stream = SimpleNamespace(ptr=STREAM)
        self.cuda = SimpleNamespace(runtime=runtime, get_current_stream=lambda: stream)
        self._next_pointer = 1 << 20

    def zeros(self, shape: tuple[int, ...], dtype: str) -> FakeArray:
        """A new array at an address of its own."""
        self._next_pointer += 1 << 20
        return FakeArray(*shape, dtype=dtype, pointer=self._next_pointer)

    @staticmethod
    def load(source: str, name: str, **defines: int) -> FakeKernel:
        """Instead of testbed.kernels.launch.compile.load."""
        return FakeKernel(source, name, defines)

    def launch(self, kernel, grid, threads, arguments, shared_bytes=0):
        """Instead of testbed.kernels.launch.launch.Launch; a call of the result does nothing."""
        assert kernel.max_dynamic_shared_size_bytes >= shared_bytes
        expected = parameters(kernel.source, kernel.name)
        assert len(arguments) == len(expected), f"{kernel.name} takes {len(expected)} arguments"
        for parameter, value in zip(expected, arguments, strict=True):
            value_type = int if parameter.is_pointer else VALUE_TYPES[parameter.type]
            assert type(value) is value_type, f"{parameter.name} is a {parameter.type}"
        named = {p.name: value for p, value in zip(expected, arguments, strict=True)}
        recorded = RecordedLaunch(
            source=kernel.source,
            kernel=kernel.name,
            defines=kernel.defines,
            grid=tuple(grid),
            threads=threads,
            shared_bytes=shared_bytes,
            arguments=named,
        )
        self.launches.append(recorded)
        self.log.append("launch")
        return FakeLaunch(threads)

    def _copy(self, target: int, source: int, num_bytes: int, kind: int, stream: int) -> None:
        self.copies.append((target, source, num_bytes, kind, stream))
        self.log.append("copy")


@dataclass
class FakeLaunch:
    """A bound launch that does nothing."""

    threads: int

    def __call__(self, stream: int) -> None:
        assert stream == STREAM


def launched(gpu: Any, wrapper: Any, call: Any) -> Any:
    """The one launch of a wrapper's call, and the addresses of its arrays by name."""
    addresses = place_apart(call)
    wrapper(**call)
    (launch,) = gpu.launches
    return launch, addresses
