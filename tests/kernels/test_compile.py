"""Every kernel source compiles for the GPUs in use, without one: a covering subset here, the full
grid as slow test.
"""

import pytest

pytest.importorskip("torch", reason="torch is not installed")
from ptxas import require_nvrtc

require_nvrtc()

from testbed.kernels.launch.compile import compile_cubin, source_text  # noqa: E402
from testbed.kernels.verify import verify_attention  # noqa: E402
from testbed.kernels.verify.verify_attention import SMALL_CASES, Case, cases, variants  # noqa: E402


def cache_op(**defines: int) -> tuple[str, dict[str, int]]:
    """A variant of what moves K and V."""
    usual = {"HEAD_SIZE": 128, "BF16": 0, "FP8": 0, "PAGED": 1, "BLOCK_SIZE": 16, "PAPER_LAYOUT": 0}
    return "cache_ops.cu", usual | defines


def norm(hidden: int, threads: int, flags: int) -> tuple[str, dict[str, int]]:
    """A norm with a shift and a carried vector, or without both."""
    shape = {"HIDDEN": hidden, "NUM_THREADS": threads}
    return "network.cu", {"BF16": 0, **shape, "SHIFT": flags, "CARRY": flags}


SMALL_KERNELS = [
    cache_op(),
    cache_op(BLOCK_SIZE=3, PAPER_LAYOUT=1),
    cache_op(FP8=1, BF16=1),
    cache_op(FP8=1, BF16=1, PAGED=0, BLOCK_SIZE=1),
    ("network.cu", {"HEAD_SIZE": 64, "BF16": 0}),
    ("network.cu", {"HEAD_SIZE": 64, "BF16": 1}),
    norm(5120, 256, 1),
    norm(896, 128, 0),
    norm(9216, 1024, 1),
]


def is_compiled(source: str, defines: dict[str, int], arch: str) -> bool:
    """True if the compiler gives an ELF file."""
    return compile_cubin(source, defines, arch).startswith(b"\x7fELF")


def compiled_sources(case: Case, arch: str, skipped: str = "") -> set[str]:
    """Compile all attention kernels of a case, each variant once, but those of one source; the
    sources of all.
    """
    wanted = {}
    for form in case.forms:
        for source, defines in variants(case.shape, case.plan, form):
            wanted[source, tuple(sorted(defines.items()))] = defines
    for (source, _), defines in wanted.items():
        if source != skipped:
            assert is_compiled(source, defines, arch), (source, defines)
    return {source for source, _ in wanted}


@pytest.mark.parametrize("case", [case for case in SMALL_CASES if case.seed not in (4, 6)], ids=str)
def test_attention_compiles_for_hopper(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    monkeypatch.setattr(verify_attention, "has_wgmma", lambda head_size: head_size in (64, 128))
    # prefill_tma.cu is slow to compile; test_prefill_launches.py compiles four variants.
    sources = compiled_sources(case, "sm_90a", skipped="prefill_tma.cu")
    assert ("prefill_tma.cu" in sources) == (case.shape.head_size in (64, 128))


def test_attention_compiles_for_older_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_attention, "has_wgmma", lambda head_size: False)
    sources = compiled_sources(SMALL_CASES[0], "sm_89")
    assert sources == {"decode.cu", "prefill.cu", "paper_decode.cu"}
    for variant in (*variants(SMALL_CASES[5].shape, SMALL_CASES[5].plan), SMALL_KERNELS[0]):
        assert is_compiled(*variant, "sm_80")


@pytest.mark.parametrize("variant", SMALL_KERNELS, ids=str)
def test_moves_and_small_operations_compile(variant: tuple[str, dict[str, int]]) -> None:
    assert is_compiled(*variant, "sm_90a")


@pytest.mark.slow
def test_full_grid_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_attention, "has_wgmma", lambda head_size: head_size in (64, 128))
    for case in cases():
        compiled_sources(case, "sm_90a")


def test_errors_show_the_compiler_log() -> None:
    with pytest.raises(RuntimeError, match="does not compile for sm_90"):
        compile_cubin("decode.cu", {"HEAD_SIZE": 128}, "sm_90")


def test_project_headers_are_inlined() -> None:
    text = source_text("decode.cu")
    assert "#include" not in text
    assert "add_values" in text
