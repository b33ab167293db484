"""The commands of the kernels and of the GPU engine, and checks that this machine can run them.

Modules that run on a GPU need torch and CuPy, and are imported after the arguments have been
parsed.
"""

import time
from argparse import Namespace, RawDescriptionHelpFormatter
from importlib import import_module
from types import ModuleType

from testbed.command_line import Parser
from testbed.core.errors import InputError
from testbed.core.shapes import check_plain, read_model
from testbed.cost.sections import dump, read_profile
from testbed.kernels.launch.compile import KernelsUnavailable, require_gpu

MEASUREMENTS = {
    "all-reduce": (
        "measure.all_reduce",
        "all-reduces over 2, 4 or 8 GPUs, alone and between matrix products",
    ),
    "cache-forms": (
        "measure.bench_kernels",
        "attention with caches of e4m3 and with windows, next to fp16 and torch",
    ),
    "ladder": ("ladder.measure", "decode attention in five steps, each checked first"),
    "sampler": ("measure.sampler", "host time of the 2023 system's sampler by kind of sampling"),
    "transfers": ("measure.transfers", "transfers by number of extents, bytes and block size"),
}


def on_gpu(module: str, command: str) -> ModuleType:
    """Import a module that runs on a GPU; raises InputError without a GPU."""
    found = imported(module, command)
    try:
        require_gpu()
    except KernelsUnavailable as error:
        raise InputError(f"{command}: needs an NVIDIA GPU ({error})") from error
    return found


def imported(module: str, command: str) -> ModuleType:
    """Import a module that needs torch or CuPy; raises InputError with the name of a missing
    package.
    """
    try:
        return import_module(f"testbed.kernels.{module}")
    except ModuleNotFoundError as error:
        raise InputError(
            f"{command}: needs {error.name} and an NVIDIA GPU (install kvcache-testbed[cuda13], or "
            f"[cuda12])"
        ) from error


def bench_kernels(options: Namespace) -> None:
    """Check and print every claim about the kernels."""
    on_gpu("measure.bench_kernels", "bench-kernels").bench(options.out, options.rounds)


def measure(argv: list[str]) -> None:
    """Parse the name; the measurement parses the other arguments."""
    lines = "\n".join(f"  {name:<14}{text}" for name, (_, text) in MEASUREMENTS.items())
    this = Parser(
        "measure",
        f"One measurement on this machine's GPU.\n\n{lines}",
        formatter_class=RawDescriptionHelpFormatter,
        epilog="testbed measure NAME --help explains one.",
    )
    this.add_argument("name", choices=MEASUREMENTS, metavar="NAME")
    name = this.parse_args(argv[:1]).name
    find = on_gpu if {"-h", "--help"}.isdisjoint(argv) else imported
    found = find(MEASUREMENTS[name][0], f"measure {name}").MEASUREMENT
    imported("measure.timing", f"measure {name}").print_rows(name, found, argv[1:])


def verify_engine(options: Namespace) -> int:
    """Verify the engine; returns 0 if all checks passed, else 1."""
    against = on_gpu("engine.verify.against_transformers", "verify-engine")
    return int(not against.verify(options.models, options.scenarios, options.out))


def pairs(options: Namespace) -> None:
    """Run the pairs of the command line; raises InputError if one failed or was left out."""
    from testbed.kernels.engine.pairs.plan import PAIRS, device

    missing = on_gpu("engine.pairs.run", "pairs").run_pairs(
        PAIRS, device(), options.out, options.limit_s
    )
    if missing:
        raise InputError(f"{', '.join(missing)}: no result")


def _checked(options: Namespace) -> list[tuple[str, int]]:
    """Every model with its degree; raises InputError unless each can be measured and written."""
    models = [_degree_of(entry, options.tp) for entry in options.model]
    if options.engine and any(num_gpus > 1 for _, num_gpus in models):
        raise InputError("--engine: the engine runs on one GPU (leave --tp out)")
    if len(models) > 1 and not options.out.is_dir():
        raise InputError(f"--out {options.out}: several models need a folder that exists")
    if not options.out.parent.is_dir():
        raise InputError(f"--out {options.out}: there is no folder {options.out.parent}")
    return models


def _degree_of(entry: str, default: int) -> tuple[str, int]:
    """NAME or NAME:TP as name and tensor-parallel degree, which must divide the model's heads."""
    name, _, text = entry.partition(":")
    model = read_model(name)
    degree = int(text) if text.isdecimal() else default if not text else 0
    check_plain(model, "the calibration")
    if degree < 1 or model.num_heads % degree or model.num_kv_heads % degree:
        heads = f"{model.num_heads} heads and {model.num_kv_heads} heads of K and V"
        raise InputError(
            f"{entry}: tensor-parallel degree {text or default} does not divide {name}'s {heads}"
        )
    return name, degree


def calibrate(options: Namespace) -> None:
    """Check the arguments, then measure: the kernels first, then a profile for each model."""
    models = _checked(options)
    reduced = (
        read_profile(options.all_reduce)["sections"]["all_reduce"] if options.all_reduce else None
    )
    sections = on_gpu("measure.profile_sections", "calibrate")
    if not on_gpu("verify.verify_attention", "calibrate").verify(options.rounds):
        raise SystemExit("a kernel disagrees with its reference: nothing was measured")
    for name, num_gpus in models:
        started = time.monotonic()
        if options.engine:
            profile = on_gpu("engine.calibrate", "calibrate --engine").with_engine_sections(name)
        else:
            profile = sections.whole_profile(read_model(name), num_gpus, reduced)
        path = options.out / sections.file_name(profile) if options.out.is_dir() else options.out
        path.write_text(dump(profile))
        about, seconds = profile["sections"]["linear"]["note"], time.monotonic() - started
        if fit := profile.get("fit"):
            errors = f"median error {fit['median_error']:.2%}, p95 {fit['p95_error']:.2%}"
            about = f"{errors} on {fit['num_batches']} unseen ragged batches"
        print(f"{name} tp {num_gpus}: {about}; {seconds:.0f} s -> {path.name}", flush=True)
