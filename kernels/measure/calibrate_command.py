"""`testbed calibrate --model NAME --tp N --out FILE`: measure this machine's GPU into a cost profile.

All kernels are verified first, then swept, and the fit is tested on batches that the sweep never saw. It needs torch,
CuPy and an NVIDIA GPU; what can be known to be wrong without them is said at once.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from kernels.measure.arguments import Arguments
from testbed.core.errors import InputError
from testbed.core.shapes import read_model


def parser() -> Arguments:
    """The command's arguments."""
    this = Arguments(prog="testbed calibrate", description=str(__doc__).partition(": ")[2])
    this.add_argument("--model", required=True, nargs="+", help="a model that ships (testbed list model), or NAME:TP")
    this.add_argument("--tp", type=int, default=1, help="tensor-parallel degree (default: 1)")
    this.add_argument("--out", type=Path, required=True, help="profile JSON, or a folder for several models")
    this.add_argument("--all-reduce", help="profile whose all-reduces to take, if this machine has one GPU only")
    this.add_argument("--add-mixed", action="store_true", help="measure mixed_attention alone, and keep the "
                      "rest of the shipped profile")  # fmt: skip
    this.add_argument("--rounds", type=int, default=1, help="rounds of random checks before measuring (default: 1)")
    return this


def checked(options: argparse.Namespace) -> list[tuple[str, int]]:
    """Every model with its degree, if all of them can be measured and there is a place for each."""
    models = [degree_of(entry, options.tp) for entry in options.model]
    if options.rounds < 1:
        raise InputError(f"--rounds is {options.rounds}; it must be at least 1")
    if len(models) > 1 and not options.out.is_dir():
        raise InputError(f"--out {options.out}: several models need a folder that exists")
    if not options.out.parent.is_dir():
        raise InputError(f"--out {options.out}: there is no folder {options.out.parent}")
    if options.all_reduce and not Path(options.all_reduce).is_file():
        raise InputError(f"--all-reduce {options.all_reduce}: no such file")
    return models


def degree_of(entry: str, default: int) -> tuple[str, int]:
    """NAME or NAME:TP as name and tensor-parallel degree, which must divide the model's heads."""
    name, _, text = entry.partition(":")
    model = read_model(name)
    degree = int(text) if text.isdecimal() else default if not text else 0
    if degree < 1 or model.num_heads % degree or model.num_kv_heads % degree:
        heads = f"{model.num_heads} heads and {model.num_kv_heads} heads of K and V"
        raise InputError(f"{entry}: tensor-parallel degree {text or default} does not divide {name}'s {heads}")
    return name, degree


def main(arguments: Sequence[str] | None = None) -> None:
    """Check the arguments, then measure."""
    options = parser().parse_args(arguments)
    models = checked(options)
    try:
        from kernels.measure.calibrate import measure
    except ModuleNotFoundError as error:
        raise InputError(
            f"calibrate needs {error.name} and an NVIDIA GPU: install kvcache-testbed[cuda13], or [cuda12]"
        ) from error
    measure(models, options)


if __name__ == "__main__":
    main()
