"""`testbed gpu`: commands that need an NVIDIA GPU. Torch and CuPy are imported after the arguments
have been checked.
"""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from testbed.core.errors import InputError
from testbed.experiments.cli.gpu_calibrate import calibrate
from testbed.experiments.cli.gpu_measure import app as measure
from testbed.experiments.cli.parameters import Override, WholeNumber
from testbed.experiments.cli.vllm_parameters import (
    LIMIT_S,
    LimitSeconds,
    Python,
    ServerCommand,
)
from testbed.kernels import gpu_commands

app = App(name="gpu", help="Measure, check and run on an NVIDIA GPU.")
app.command(calibrate)


@app.command
def record(
    *overrides: Override,
    from_vllm: ServerCommand,
    python: Python | None = None,
    out: Annotated[Path, Parameter(metavar="DIR", help="new folder for the log")],
    limit_s: LimitSeconds = LIMIT_S,
    refresh: Annotated[
        Path | None,
        Parameter(metavar="PROFILE", help="sweep the host before, and scale this profile by it"),
    ] = None,
) -> None:
    """Serve a workload by the vLLM that is installed, and keep its log for testbed validate.

    The overrides give trace, arrivals and workload as in testbed run. Arrivals have the engine's
    clock and the client's, and every iteration is logged too. For example:

    testbed gpu record --from-vllm "vllm serve MODEL" trace=sharegpt arrivals.rate=4 --out log
    """
    from testbed.experiments.real.vllm_engine.recorded_log import record as record_log
    from testbed.experiments.runs.compose import configured
    from testbed.run.workload import make_workload

    workload = make_workload(configured(list(overrides)))
    record_log(from_vllm, workload, python or sys.executable, out, limit_s, refresh)


@app.command
def verify(
    *,
    out: Annotated[Path | None, Parameter(metavar="DIR", help="folder of right.csv")] = None,
) -> int:
    """Check the GPU engine against transformers.

    By logits: random models of every family, in scenarios that cover every path. Exit code 1 if
    a check fails.
    """
    return int(not gpu_commands.verify("verify", out))


@app.command
def verify_launches(
    model: Annotated[str, Parameter(metavar="MODEL", help="a shipped model")], /
) -> int:
    """Check the GPU engine's graphs, launches ahead and drafts against its plain path.

    On the model's shape with random weights in bf16: the first tokens that differ must be about as
    likely, by a tolerance from two batch sizes of the plain path. Exit code 1 if one is not.
    """
    return int(not gpu_commands.verify("verify-launches", model))


@app.command
def verify_parallel(
    model: Annotated[
        str | None,
        Parameter(metavar="MODEL", help="a shipped model, in bf16 (default: small ones, in fp32)"),
    ] = None,
    /,
    *,
    gpus: Annotated[WholeNumber, Parameter(metavar="N", help="number of GPUs")] = 2,
) -> int:
    """Check the engine on several GPUs against itself on one.

    Random weights; prefix hits, swaps, forks, beams, chunks, launches ahead. Logits may differ by
    twice what two batch sizes on one GPU do. Exit code 1 if they differ by more.
    """
    if gpus < 2:
        raise InputError(
            key="--gpus",
            value=gpus,
            problem="compares several GPUs with one",
            remedy="give 2 or more",
        )
    return int(not gpu_commands.verify("verify-parallel", model, gpus))


@app.command
def bench(
    *,
    out: Annotated[Path, Parameter(metavar="DIR", help="folder for h200.csv")] = Path("."),
) -> None:
    """Check and time the CUDA kernels.

    Prints every claim about the kernels: first all of them against their references; then paging
    against contiguous memory, and decode, prefill and swap times against the goals.
    """
    gpu_commands.on_gpu("measure.bench_kernels", "gpu bench").bench(out)


app.command(measure)
