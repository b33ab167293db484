"""`testbed bench-kernels`: every claim about the kernels, checked and printed.

First all kernels against their references; then paging against contiguous memory, decode, prefill and swap times
beside the goals, and the fit of one model's profile. It needs torch, CuPy and an NVIDIA GPU.
"""

from collections.abc import Sequence
from pathlib import Path

from kernels.measure.arguments import Arguments
from testbed.core.errors import InputError


def parser() -> Arguments:
    """The command's arguments."""
    this = Arguments(prog="testbed bench-kernels", description=str(__doc__).partition(": ")[2])
    this.add_argument("--out", type=Path, default=Path("."), help="folder for h200.csv and h200.md")
    this.add_argument("--rounds", type=int, default=2, help="rounds of random checks, 110 batches each")
    this.add_argument("--fit", nargs="*", default=["opt-13b"], help="models whose fit is tested")
    return this


def main(arguments: Sequence[str] | None = None) -> None:
    """Check the arguments, then measure."""
    options = parser().parse_args(arguments)
    try:
        from kernels.measure.bench_kernels import bench
    except ModuleNotFoundError as error:
        raise InputError(
            f"bench-kernels needs {error.name} and an NVIDIA GPU: install kvcache-testbed[cuda13], or [cuda12]"
        ) from error
    bench(options)


if __name__ == "__main__":
    main()
