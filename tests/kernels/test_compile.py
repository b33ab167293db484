"""Every kernel source compiles for the GPUs in use, without one: a covering subset here, the full grid as slow test."""

from itertools import product

import pytest

from testbed.kernels.launch.compile import compile_cubin, source_text
from testbed.kernels.launch.decode_plan import CTAS_PER_SM

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
try:
    from cupy.cuda import nvrtc

    nvrtc.getVersion()
except Exception as error:
    pytest.skip(f"NVRTC is not usable: {error}", allow_module_level=True)

HEAD_SIZES = (64, 80, 96, 128, 256)


def decode(
    head_size: int, group: int, block_size: int, bf16: int, num_warps: int = 4, wave: int = 0
) -> tuple[str, dict[str, int]]:
    """A decode variant; block size 0 is the contiguous kernel."""
    constants = {"HEAD_SIZE": head_size, "GROUP": group, "BF16": bf16, "NUM_WARPS": num_warps, "WAVE": wave}
    constants |= {"CTAS_PER_SM": max(1, CTAS_PER_SM[head_size] * 4 // num_warps)}
    return "decode.cu", constants | {"PAGED": int(block_size > 0), "BLOCK_SIZE": max(1, block_size)}


def other(source: str, head_size: int, group: int, block_size: int, bf16: int) -> tuple[str, dict[str, int]]:
    """A variant of the paper kernel or of prefill."""
    return source, {"HEAD_SIZE": head_size, "GROUP": group, "BLOCK_SIZE": block_size, "BF16": bf16}


def move(block_size: int, paper_layout: int) -> tuple[str, dict[str, int]]:
    """A variant of the moves."""
    return "cache_ops.cu", {"HEAD_SIZE": 128, "BLOCK_SIZE": block_size, "PAPER_LAYOUT": paper_layout}


def formed(variant: tuple[str, dict[str, int]], fp8: int, windowed: int) -> tuple[str, dict[str, int]]:
    """A variant for caches of e4m3 or for windows."""
    return variant[0], {"BF16": 0, "PACK": 1, **variant[1], "FP8": fp8, "WINDOWED": windowed}


def network(**constants: int) -> tuple[str, dict[str, int]]:
    """A variant of the small operations."""
    return "network.cu", {"BF16": 0, **constants}


# Every head size with every kind of block (below, at, above a tile; none), head tiles of 1, 8 and two, both types.
COVERING = [
    *(decode(size, group, block, bf16) for size, (group, block, bf16) in product(HEAD_SIZES, ((1, 16, 0), (12, 1, 1)))),
    decode(128, 4, 0, 0), decode(64, 7, 24, 1), decode(128, 8, 256, 1, 8), decode(128, 8, 16, 0, 8, 1),
    decode(128, 1, 64, 0, 2),
    *(other("prefill.cu", size, 1, 16, size % 3 % 2) for size in HEAD_SIZES), other("prefill.cu", 128, 4, 1, 1),
    ("prefill_tma.cu", other("", 64, 7, 32, 1)[1] | {"PACK": 0}),
    *(formed(*one) for one in (
        (decode(64, 7, 3, 1, 8, 1), 1, 1), (decode(128, 4, 16, 0), 1, 0), (decode(256, 1, 0, 1), 1, 0),
        (decode(80, 12, 1, 0), 0, 1), (other("prefill.cu", 128, 4, 16, 0), 1, 0),
        (other("prefill.cu", 64, 4, 1, 1), 1, 1), (other("prefill.cu", 96, 4, 1, 1), 0, 1),
        (other("prefill_tma.cu", 128, 4, 16, 0), 0, 1),
        (move(16, 0), 1, 0),
    )),
    *(other("paper_decode.cu", size, 2, block, 0) for size, block in zip(HEAD_SIZES, (1, 8, 16, 32, 256), strict=True)),
    move(16, 0), move(3, 1),
    network(), network(HEAD_SIZE=64), network(HEAD_SIZE=128, BF16=1),
    *(network(HIDDEN=hidden, NUM_THREADS=threads, SHIFT=shift, CARRY=shift)
      for hidden, threads, shift in ((5120, 256, 1), (896, 128, 0), (9216, 1024, 1))),
]  # fmt: skip


def label(variant: tuple[str, dict[str, int]]) -> str:
    """Source and constants in short."""
    return variant[0].removesuffix(".cu") + "-" + "-".join(f"{key}{value}" for key, value in variant[1].items())


@pytest.mark.parametrize("variant", COVERING, ids=label)
def test_covering_subset_compiles(variant: tuple[str, dict[str, int]]) -> None:
    assert compile_cubin(*variant, "sm_90a")[:4] == b"\x7fELF"


@pytest.mark.parametrize("arch", ["sm_80", "sm_89"])
def test_older_gpus_compile_too(arch: str) -> None:
    for variant in (decode(128, 1, 16, 0), other("prefill.cu", 128, 1, 16, 0), move(16, 0)):
        assert compile_cubin(*variant, arch)[:4] == b"\x7fELF"


@pytest.mark.slow
def test_full_grid_compiles() -> None:
    blocks = (1, 2, 4, 8, 16, 32, 64, 128, 256, 3, 24)
    for size, group, block, bf16 in product(HEAD_SIZES, (1, 4, 7, 8, 12), blocks, (0, 1)):
        compile_cubin(*decode(size, group, block, bf16), "sm_90")
        compile_cubin(*other("prefill.cu", size, group, block, bf16), "sm_90")
        if block & (block - 1) == 0:
            compile_cubin(*other("paper_decode.cu", size, group, block, bf16), "sm_90")


def test_errors_show_the_compiler_log() -> None:
    with pytest.raises(RuntimeError, match="does not compile for sm_90"):
        compile_cubin("decode.cu", {"HEAD_SIZE": 128}, "sm_90")


def test_project_headers_are_inlined() -> None:
    text = source_text("decode.cu")
    assert "#include" not in text
    assert "add_values" in text
