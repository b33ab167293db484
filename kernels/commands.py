"""The commands of the kernels and of the GPU engine: their arguments, and checks that this machine can run them.

Modules that run on a GPU need torch and CuPy, and are imported after the arguments have been parsed.
"""

from argparse import RawDescriptionHelpFormatter
from importlib import import_module
from pathlib import Path
from types import ModuleType

from testbed.command_line import Parser
from testbed.core.errors import InputError
from testbed.kernels.launch.compile import KernelsUnavailable, require_gpu

MEASUREMENTS = {
    "all-reduce": ("measure.all_reduce", "all-reduces over 2, 4 or 8 GPUs, alone and between matrix products"),
    "cache-forms": ("measure.cache_forms", "attention with caches of e4m3 and with windows, next to fp16 and torch"),
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
    """Import a module that needs torch or CuPy; raises InputError with the name of a missing package."""
    try:
        return import_module(f"testbed.kernels.{module}")
    except ModuleNotFoundError as error:
        raise InputError(
            f"{command}: needs {error.name} and an NVIDIA GPU (install kvcache-testbed[cuda13], or [cuda12])"
        ) from error


def bench_kernels(argv: list[str]) -> None:
    """Check and print every claim about the kernels."""
    this = Parser(
        "bench-kernels",
        "Checks and prints every claim about the kernels: first all kernels against their references; then paging "
        "against contiguous memory, and decode, prefill and swap times against the goals. Needs torch, CuPy and an "
        "NVIDIA GPU.",
    )
    this.add_argument("--out", type=Path, default=Path("."), help="folder for h200.csv and h200.md")
    this.add_argument("--rounds", type=int, default=2, help="rounds of random checks, 110 batches each")
    options = this.parse_args(argv)
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
    imported("measure.table", f"measure {name}").print_rows(name, found, argv[1:])


def verify_engine(argv: list[str]) -> int:
    """Verify the engine; returns 0 if all checks passed, else 1."""
    this = Parser(
        "verify-engine",
        "Compares the GPU engine's logits with those of transformers: random models of every family, in scenarios that "
        "cover every path.",
    )
    this.add_argument("--models", metavar="NAME,NAME", help="default: all")
    this.add_argument("--scenarios", default="", metavar="TEXT", help="only scenarios whose name contains TEXT")
    this.add_argument("--out", type=Path, help="folder of right.csv")
    options = this.parse_args(argv)
    against = on_gpu("engine.verify.against_transformers", "verify-engine")
    return int(not against.verify(options.models, options.scenarios, options.out))


def pairs(argv: list[str]) -> None:
    """Run the pairs of the command line; raises InputError if one failed or was left out."""
    this = Parser(
        "pairs",
        "Serves runs around and beyond the sustainable load on a GPU, to be compared with their simulation. FOLDER "
        "gets measured.csv with a line of figures for each run, software.csv with the engine's software times, and "
        "runs.tar with the raw rows. `testbed validate-pairs` simulates them and writes the table, without a GPU.",
    )
    this.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    this.add_argument("--limit-s", type=float, default=520.0, help="seconds after which no further pair starts")
    options = this.parse_args(argv)
    from testbed.kernels.engine.pairs.plan import PAIRS, device

    missing = on_gpu("engine.pairs.run", "pairs").run_pairs(PAIRS, device(), options.out, options.limit_s)
    if missing:
        raise InputError(f"{', '.join(missing)}: no result")
