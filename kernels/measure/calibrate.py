"""`testbed calibrate --model NAME --tp N --out FILE`: measure this machine's GPU into a cost profile.

All kernels are verified first, then swept, and the fit is tested on batches outside the sweep. With --engine some
sections of the shipped profile are measured, and the others stay. The command needs torch, CuPy and an NVIDIA GPU; it
checks its arguments before it imports them.
"""

import argparse
import time
from pathlib import Path
from typing import Any

from testbed.command_line import Parser
from testbed.core.errors import InputError
from testbed.core.shapes import check_plain, read_model
from testbed.cost.sections import dump, read_profile
from testbed.kernels.commands import on_gpu
from testbed.kernels.measure.fingerprint import file_name


def checked(options: argparse.Namespace) -> list[tuple[str, int]]:
    """Every model with its degree; raises InputError unless each can be measured and written."""
    models = [degree_of(entry, options.tp) for entry in options.model]
    if options.engine and any(num_gpus > 1 for _, num_gpus in models):
        raise InputError("--engine: the engine runs on one GPU (leave --tp out)")
    if options.rounds < 1:
        raise InputError(f"--rounds {options.rounds}: must be at least 1")
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
    check_plain(model, "the calibration")
    if degree < 1 or model.num_heads % degree or model.num_kv_heads % degree:
        heads = f"{model.num_heads} heads and {model.num_kv_heads} heads of K and V"
        raise InputError(f"{entry}: tensor-parallel degree {text or default} does not divide {name}'s {heads}")
    return name, degree


def main(argv: list[str]) -> None:
    """Check the arguments, then measure: the kernels first, then a profile for each model."""
    this = Parser("calibrate", str(__doc__).partition(": ")[2])
    this.add_argument("--model", required=True, nargs="+", help="a model that ships (testbed list model), or NAME:TP")
    this.add_argument("--tp", type=int, default=1, help="tensor-parallel degree (default: 1)")
    this.add_argument("--out", type=Path, required=True, help="profile JSON, or a folder for several models")
    this.add_argument("--all-reduce", help="profile with the all-reduces, if this machine has only one GPU")
    this.add_argument("--engine", action="store_true", help="measure the sections without attention on the GPU "
                      "engine's layers, and whole iterations; keep the rest of the shipped profile")  # fmt: skip
    this.add_argument("--rounds", type=int, default=1, help="rounds of random checks before measuring (default: 1)")
    options = this.parse_args(argv)
    models = checked(options)
    sections = on_gpu("measure.profile_sections", "calibrate")
    sections.require_verified(options.rounds)
    reduced = read_profile(options.all_reduce)["sections"]["all_reduce"] if options.all_reduce else None
    for name, num_gpus in models:
        started = time.monotonic()
        if options.engine:
            profile = on_gpu("engine.calibrate", "calibrate --engine").with_engine_sections(name)
        else:
            profile = sections.whole_profile(read_model(name), num_gpus, reduced)
        path = options.out / file_name(profile) if options.out.is_dir() else options.out
        path.write_text(dump(profile))
        seconds = time.monotonic() - started
        print(f"{name} tp {num_gpus}: {summary(profile)}; {seconds:.0f} s -> {path.name}", flush=True)


def summary(profile: dict[str, Any]) -> str:
    """The errors of the fit; without a fit, how the layers were measured."""
    fit = profile.get("fit")
    if not fit:
        return str(profile["sections"]["linear"]["note"])
    errors = f"median error {fit['median_error']:.2%}, p95 {fit['p95_error']:.2%}"
    return f"{errors} on {fit['num_batches']} unseen ragged batches"
