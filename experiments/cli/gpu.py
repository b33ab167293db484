"""`testbed gpu`: commands that need an NVIDIA GPU. Torch and CuPy are imported after the arguments
have been checked.
"""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from testbed.core.errors import InputError
from testbed.experiments.cli.parameters import AtLeastOne
from testbed.kernels import commands

Out = Annotated[Path, Parameter(metavar="FILE", help="JSON file to write")]

app = App(name="gpu", help="Measure, check and run on an NVIDIA GPU.")
measure = App(name="measure", help="Print one measurement of this machine's GPU as a CSV.")


@app.command
def calibrate(
    *,
    model: Annotated[
        list[str],
        Parameter(
            consume_multiple=True,
            metavar="NAME",
            help="models that ship (testbed list model), or NAME:TP",
        ),
    ],
    tp: Annotated[AtLeastOne, Parameter(help="tensor-parallel degree")] = 1,
    out: Annotated[
        Path, Parameter(metavar="FILE", help="profile JSON, or a folder for several models")
    ],
    all_reduce: Annotated[
        str | None,
        Parameter(
            metavar="PROFILE",
            help="profile with the all-reduces, if this machine has only one GPU",
        ),
    ] = None,
    engine: Annotated[
        bool,
        Parameter(
            help="measure the sections without attention on the GPU engine's layers, and whole "
            "iterations; keep the rest of the shipped profile"
        ),
    ] = False,
    rounds: Annotated[AtLeastOne, Parameter(help="rounds of random checks before measuring")] = 1,
) -> None:
    """Measure a GPU into a cost profile.

    All kernels are verified first, then swept, and the fit is tested on batches outside the sweep.
    """
    commands.calibrate(model, tp=tp, out=out, all_reduce=all_reduce, engine=engine, rounds=rounds)


@app.command
def verify(
    *,
    models: Annotated[str | None, Parameter(metavar="NAME,NAME", help="default: all")] = None,
    scenarios: Annotated[
        str, Parameter(metavar="TEXT", help="only scenarios whose name contains TEXT")
    ] = "",
    out: Annotated[Path | None, Parameter(metavar="DIR", help="folder of right.csv")] = None,
) -> int:
    """Check the GPU engine against transformers.

    By logits: random models of every family, in scenarios that cover every path. Exit code 1 where
    a check fails.
    """
    return int(not commands.verify_engine(models, scenarios, out))


@app.command
def bench(
    *,
    out: Annotated[Path, Parameter(metavar="DIR", help="folder for h200.csv and h200.md")] = Path(
        "."
    ),
    rounds: Annotated[AtLeastOne, Parameter(help="rounds of random checks, 110 batches each")] = 2,
) -> None:
    """Check and time the CUDA kernels.

    Prints every claim about the kernels: first all of them against their references; then paging
    against contiguous memory, and decode, prefill and swap times against the goals.
    """
    commands.bench_kernels(out, rounds)


@app.command
def pairs(
    *,
    out: Annotated[Path, Parameter(metavar="FOLDER", help="folder to write")],
    limit_s: Annotated[
        float, Parameter(metavar="S", help="seconds after which no further pair starts")
    ] = 520.0,
) -> None:
    """Run on a GPU what is compared with its simulation.

    Around and beyond the sustainable load. FOLDER gets measured.csv with a line of figures for each
    run, software.csv with the engine's software times, and runs.tar with the raw rows. testbed
    validate pairs simulates them and writes the table, without a GPU.
    """
    missing = commands.run_pairs(out, limit_s)
    if missing:
        raise InputError(f"{', '.join(missing)}: no result")


app.command(measure)


@measure.command(name="all-reduce")
def all_reduce(
    *,
    gpus: Annotated[
        list[int] | None,
        Parameter(consume_multiple=True, metavar="N", help="numbers of GPUs (default: 2)"),
    ] = None,
    known: Annotated[
        str | None,
        Parameter(metavar="PROFILE", help="a profile with all-reduces over other numbers of GPUs"),
    ] = None,
) -> None:
    """Measure all-reduces over 2, 4 or 8 GPUs, alone and between matrix products."""
    commands.measure("all-reduce", gpus=gpus or [2], known=known)


@measure.command(name="cache-forms")
def cache_forms(
    *,
    rounds: Annotated[
        int, Parameter(metavar="N", help="rounds of random checks, 110 batches each; 0: none")
    ] = 1,
) -> None:
    """Measure attention with caches of e4m3 and with windows, next to fp16 and torch.

    A row has microseconds, the ratio to the time of the kernel in `base`, and the goal of that
    ratio.
    """
    commands.measure("cache-forms", rounds=rounds)


@measure.command
def ladder() -> None:
    """Measure decode attention in five steps, each checked first.

    A row has microseconds of one layer's attention: as a captured graph, which is the GPU's part,
    and launched from Python.
    """
    commands.measure("ladder")


@measure.command
def sampler() -> None:
    """Measure the host time of the 2023 system's sampler by kind of sampling."""
    commands.measure("sampler")


@measure.command
def transfers(
    *,
    ways: Annotated[
        list[Literal["out", "in", "peer"]] | None,
        Parameter(consume_multiple=True, help="default: out in"),
    ] = None,
    methods: Annotated[
        list[Literal["copies", "batch", "gather"]] | None,
        Parameter(consume_multiple=True, help="default: all"),
    ] = None,
    out: Out,
) -> None:
    """Measure transfers by number of extents, bytes and block size."""
    commands.measure(
        "transfers",
        ways=ways or ["out", "in"],
        methods=methods or ["copies", "batch", "gather"],
        out=out,
    )
