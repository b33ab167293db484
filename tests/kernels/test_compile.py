"""Every kernel source compiles for the GPUs in use, without one: a covering subset here, the full
grid as slow test.
"""

from hashlib import sha256

import pytest
from kept import check_lines

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytest.importorskip("torch", reason="torch is not installed")
try:
    from cupy.cuda import nvrtc

    nvrtc.getVersion()
except Exception as error:
    pytest.skip(f"NVRTC is not usable: {error}", allow_module_level=True)

from testbed.kernels.launch.compile import compile_cubin, source_text  # noqa: E402
from testbed.kernels.verify import verify_attention  # noqa: E402
from testbed.kernels.verify.verify_attention import SMALL_CASES, Case, cases, variants  # noqa: E402

NORMS = ((5120, 256, 1), (896, 128, 0), (9216, 1024, 1))
OTHERS = [
    *(
        (
            "cache_ops.cu",
            {
                "HEAD_SIZE": 128,
                "BF16": fp8,
                "FP8": fp8,
                "PAGED": paged,
                "BLOCK_SIZE": n,
                "PAPER_LAYOUT": p,
            },
        )
        for paged, n, p, fp8 in ((1, 16, 0, 0), (1, 3, 1, 0), (1, 16, 0, 1), (0, 1, 0, 1))
    ),
    *(("network.cu", {"HEAD_SIZE": 64, "BF16": bf16}) for bf16 in (0, 1)),
    *(
        (
            "network.cu",
            {"BF16": 0, "HIDDEN": hidden, "NUM_THREADS": threads, "SHIFT": shift, "CARRY": shift},
        )
        for hidden, threads, shift in NORMS
    ),
]


def compiles(case: Case, arch: str, but: str = "") -> set[str]:
    """Compile all attention kernels of a case but those of one source; returns the sources of
    all.
    """
    found = {str(one): one for form in case.forms for one in variants(case.shape, case.plan, form)}
    assert all(
        compile_cubin(*one, arch)[:4] == b"\x7fELF" for one in found.values() if one[0] != but
    )
    return {source for source, _ in found.values()}


@pytest.mark.parametrize("case", [one for one in SMALL_CASES if one.seed not in (4, 6)], ids=str)
def test_attention_compiles_for_hopper(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    monkeypatch.setattr(verify_attention, "has_wgmma", lambda head_size: head_size in (64, 128))
    sources = compiles(case, "sm_90a", but="prefill_tma.cu")  # slow to compile: test_launch.py does
    assert ("prefill_tma.cu" in sources) == (case.shape.head_size in (64, 128))


def test_attention_compiles_for_older_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_attention, "has_wgmma", lambda head_size: False)
    assert compiles(SMALL_CASES[0], "sm_89") == {"decode.cu", "prefill.cu", "paper_decode.cu"}
    for variant in (*variants(SMALL_CASES[5].shape, SMALL_CASES[5].plan), OTHERS[0]):
        assert compile_cubin(*variant, "sm_80")[:4] == b"\x7fELF"


def test_variants_are_those_that_are_kept(request, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_attention, "has_wgmma", lambda head_size: head_size in (64, 128))
    lines = [
        (case, form, *one)
        for case in SMALL_CASES
        for form in case.forms
        for one in variants(case.shape, case.plan, form)
    ]
    every = [(case, case.forms, variants(case.shape, case.plan)) for case in cases(2)]
    check_lines(
        [*lines, len(every), sha256(repr(every).encode()).hexdigest()], request, "variants.txt"
    )


@pytest.mark.parametrize("variant", OTHERS, ids=str)
def test_moves_and_small_operations_compile(variant: tuple[str, dict[str, int]]) -> None:
    assert compile_cubin(*variant, "sm_90a")[:4] == b"\x7fELF"


@pytest.mark.slow
def test_full_grid_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_attention, "has_wgmma", lambda head_size: head_size in (64, 128))
    for case in cases(2):
        compiles(case, "sm_90a")


def test_errors_show_the_compiler_log() -> None:
    with pytest.raises(RuntimeError, match="does not compile for sm_90"):
        compile_cubin("decode.cu", {"HEAD_SIZE": 128}, "sm_90")


def test_project_headers_are_inlined() -> None:
    text = source_text("decode.cu")
    assert "#include" not in text
    assert "add_values" in text
