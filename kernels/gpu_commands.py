"""Work of `testbed gpu` with the kernels and the GPU engine, after checks that this machine can do
it.

Modules that run on a GPU need torch and CuPy, and are imported after the arguments have been
checked.
"""

import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from testbed.core.errors import InputError
from testbed.kernels.launch.compile import KernelsUnavailable, require_gpu

# The module of each measurement, which has a MEASUREMENT.
MEASUREMENTS = {
    "attention-beside": "measure.attention_beside",
    "block-moves": "measure.block_moves",
    "ladder": "ladder.measure",
    "transfers": "measure.transfers",
}
# The module and the function of each check, which is whether all is right.
VERIFICATIONS = {
    "verify": ("engine.verify.against_transformers", "verify"),
    "verify-launches": ("engine.verify.against_plain", "verify_launches"),
    "verify-parallel": ("engine.verify.against_one_gpu", "verify_parallel"),
}


def on_gpu(module: str, command: str) -> ModuleType:
    """Import a module that runs on a GPU; raises InputError without a GPU."""
    loaded = imported(module, command)
    try:
        require_gpu()
    except KernelsUnavailable as error:
        raise InputError(key=command, problem=f"needs an NVIDIA GPU ({error})") from error
    return loaded


def imported(module: str, command: str) -> ModuleType:
    """Import a module that needs torch or CuPy; raises InputError with the name of a missing
    package, or what another fails at.
    """
    try:
        return import_module(f"testbed.kernels.{module}")
    except ModuleNotFoundError as error:
        raise InputError(
            key=command,
            problem=f"needs {error.name} and an NVIDIA GPU",
            remedy="install kvcache-testbed[cuda13], or [cuda12]",
        ) from error
    except (ImportError, OSError) as error:
        words = " ".join(str(error).split())
        raise InputError(
            key=command,
            problem=f"torch or CuPy cannot be imported: {words}",
            remedy="install kvcache-testbed[cuda13], or [cuda12], in a new environment",
        ) from error


def measure(name: str, **options: Any) -> None:
    """Print the rows of a measurement. options: the parameters of its rows()."""
    command = f"gpu measure {name}"
    measurement = on_gpu(MEASUREMENTS[name], command).MEASUREMENT
    imported("measure.timing", command).print_rows(command, measurement, options)


def verify(check: str, *arguments: Any) -> bool:
    """True if a check by this name of `testbed gpu` finds nothing wrong."""
    module, function = VERIFICATIONS[check]
    is_right: bool = getattr(on_gpu(module, f"gpu {check}"), function)(*arguments)
    return is_right


def checked_models(names: Sequence[str], *, tp: int, out: Path) -> list[tuple[str, int]]:
    """Every model with its degree; raises InputError unless each can be measured and written."""
    models = [_degree_of(name, tp) for name in names]
    if len(models) > 1 and not out.is_dir():
        raise InputError(key="--out", value=out, problem="several models need a folder that exists")
    if not out.parent.is_dir():
        raise InputError(key="--out", value=out, problem=f"there is no folder {out.parent}")
    return models


def check_present(models: Sequence[tuple[str, int]], num_present: int) -> None:
    """Raise InputError for a degree above the GPUs that there are: the engine runs on all of it."""
    for name, num_gpus in models:
        if num_gpus > num_present:
            raise InputError(
                key=name,
                problem=(
                    f"tensor-parallel degree {num_gpus} needs as many GPUs for the engine, this "
                    f"machine has {num_present}"
                ),
                remedy="leave --system engine out, or give less",
            )


def _degree_of(entry: str, default: int) -> tuple[str, int]:
    """NAME or NAME:TP as name and tensor-parallel degree, which must divide the model's heads."""
    from testbed.core.shapes import check_plain, read_model

    name, _, text = entry.partition(":")
    model = read_model(name)
    degree = int(text) if text.isdecimal() else default if not text else 0
    check_plain(model, "the calibration")
    if degree < 1 or model.num_heads % degree or model.num_kv_heads % degree:
        heads = f"{model.num_heads} heads and {model.num_kv_heads} heads of K and V"
        raise InputError(
            key=entry,
            problem=f"tensor-parallel degree {text or default} does not divide {name}'s {heads}",
        )
    return name, degree


def calibrate(names: Sequence[str], *, tp: int, out: Path, engine: bool) -> None:
    """Check the arguments, then measure: the kernels first, then a profile for each model.

    names: NAME or NAME:TP, by default of degree tp; out: a file, or a folder for several models;
    engine: measure on the engine's layers.
    """
    from testbed.core.shapes import read_model
    from testbed.cost.sections import dump

    models = checked_models(names, tp=tp, out=out)
    sections = on_gpu("measure.profile_sections", "gpu calibrate")
    if engine:
        check_present(models, imported("measure.timing", "gpu calibrate").num_gpus())
    if not on_gpu("verify.verify_attention", "gpu calibrate").verify():
        raise SystemExit("a kernel disagrees with its reference: nothing was measured")
    for name, num_gpus in models:
        started = time.monotonic()
        if engine:
            profile = _of_engine(name, num_gpus)
        else:
            profile = sections.whole_profile(read_model(name), num_gpus)
        path = out / sections.file_name(profile) if out.is_dir() else out
        path.write_text(dump(profile))
        took_s = time.monotonic() - started
        print(f"{name} tp {num_gpus}: {_about(profile)}; {took_s:.0f} s -> {path.name}", flush=True)


def _of_engine(name: str, num_gpus: int) -> dict[str, Any]:
    """The profile of the engine's iterations."""
    calibration = on_gpu("engine.calibrate_engine", "gpu calibrate --system engine")
    profile: dict[str, Any] = calibration.with_engine_sections(name, num_gpus)
    return profile


def _about(profile: dict[str, Any]) -> str:
    """The errors of a profile's fit, else the note of its linear section."""
    fit = profile.get("fit")
    if not fit:
        return str(profile["sections"]["linear"]["note"])
    errors = f"median error {fit['median_error']:.2%}, p95 {fit['p95_error']:.2%}"
    return f"{errors} on {fit['num_batches']} unseen ragged batches"
