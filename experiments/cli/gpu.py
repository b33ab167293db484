"""`testbed gpu`: commands that need an NVIDIA GPU. Torch and CuPy are imported after the arguments
have been checked.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from testbed.core.errors import InputError
from testbed.experiments.cli.parameters import AboveZero, AtLeastOne, Override, WholeNumber
from testbed.kernels import commands

Python = Annotated[
    str, Parameter(metavar="PATH", help="the Python that has vLLM (default: this one)")
]
ServerCommand = Annotated[
    str,
    Parameter(metavar="COMMAND", help='the server, as "vllm serve MODEL --max-model-len 16384"'),
]
LimitSeconds = Annotated[
    AboveZero, Parameter(metavar="S", help="seconds after which nothing more is begun")
]
Out = Annotated[Path, Parameter(metavar="FILE", help="JSON file to write")]

Url = Annotated[
    str,
    Parameter(metavar="URL", help="a running server behind OpenAI's API, in place of --from-vllm"),
]
ServedModel = Annotated[
    str, Parameter(metavar="NAME", help="--url: the model (default: the only one)")
]
ApiKey = Annotated[str, Parameter(metavar="KEY", help="--url: what the server takes")]

app = App(name="gpu", help="Measure, check and run on an NVIDIA GPU.")
measure = App(name="measure", help="Print one measurement of this machine's GPU as a CSV.")


System = Annotated[
    Literal["kernels", "engine", "vllm"],
    Parameter(
        help="what is measured: this project's kernels; also whole iterations of its GPU engine, "
        "which keep the rest of the shipped profile; or the vLLM that is installed"
    ),
]
ModelNames = Annotated[
    list[str],
    Parameter(
        consume_multiple=True,
        metavar="NAME",
        help="models that ship (testbed list model), or NAME:TP; of vLLM its command's",
    ),
]
Degree = Annotated[AtLeastOne, Parameter(help="tensor-parallel degree (default: 1)")]
ProfileOut = Annotated[
    Path, Parameter(metavar="FILE", help="profile JSON, or a folder for several models")
]
AllReduce = Annotated[
    str,
    Parameter(
        metavar="PROFILE", help="profile with the all-reduces, if this machine has only one GPU"
    ),
]
WholeEngine = Annotated[bool, Parameter(help="the same as --system engine")]
Rounds = Annotated[
    AtLeastOne, Parameter(help="rounds of random checks before measuring (default: 1)")
]
Kernels = Annotated[
    Path,
    Parameter(
        metavar="FILE",
        help="--system engine: a profile of this model and GPU whose kernels are taken as they are",
    ),
]
OfVllm = Annotated[ServerCommand, Parameter(help="--system vllm: the server")]
Keep = Annotated[Path, Parameter(metavar="DIR", help="--system vllm: keep its logged iterations")]
LIMIT_S = 420.0


@app.command
def calibrate(
    *,
    system: System = "kernels",
    model: ModelNames | None = None,
    tp: Degree | None = None,
    out: ProfileOut,
    all_reduce: AllReduce | None = None,
    engine: WholeEngine = False,
    rounds: Rounds | None = None,
    kernels: Kernels | None = None,
    from_vllm: OfVllm | None = None,
    python: Python | None = None,
    keep: Keep | None = None,
    limit_s: LimitSeconds | None = None,
) -> None:
    """Measure a GPU, or the vLLM on it, into a cost profile.

    Kernels are verified first, then swept, and the fit is tested on batches outside the sweep. A
    vLLM runs in a process of its own with the options of its command; add --load-format dummy for
    random weights. For example:

    testbed gpu calibrate --system vllm --from-vllm "vllm serve MODEL" --out mine.json
    """
    of_kernels = {
        "model": model,
        "tp": tp,
        "all-reduce": all_reduce,
        "rounds": rounds,
        "kernels": kernels,
    }
    of_vllm = {"from-vllm": from_vllm, "python": python, "keep": keep, "limit-s": limit_s}
    if system == "vllm":
        _refuse_given({**of_kernels, "engine": engine or None}, f"--system {system}")
        return _calibrate_vllm(from_vllm, python, out, keep, limit_s)
    _refuse_given(of_vllm, f"--system {system}")
    if not model:
        raise InputError("--model: is missing (testbed list model)")
    is_engine = engine or system == "engine"
    commands.calibrate(
        model,
        tp=tp or 1,
        out=out,
        all_reduce=all_reduce,
        engine=is_engine,
        rounds=rounds or 1,
        kernels=kernels,
    )


def _calibrate_vllm(
    command: str | None, python: str | None, out: Path, keep: Path | None, limit_s: float | None
) -> None:
    from testbed.experiments.vllm_engine.calibrate import calibrate as calibrate_vllm

    if command is None:
        raise InputError('--system vllm: needs the server (--from-vllm "vllm serve MODEL ...")')
    calibrate_vllm(command, python or sys.executable, out, keep, limit_s or LIMIT_S)


def _refuse_given(options: Mapping[str, object], choice: str) -> None:
    """Raise InputError for an option that nothing reads with the option that was chosen."""
    for name, value in options.items():
        if value is not None:
            raise InputError(f"--{name}: nothing reads it with {choice} (leave it out)")


@app.command
def record(
    *overrides: Override,
    from_vllm: ServerCommand | None = None,
    python: Python | None = None,
    url: Url | None = None,
    model: ServedModel | None = None,
    api_key: ApiKey | None = None,
    out: Annotated[Path, Parameter(metavar="DIR", help="new folder for the log")],
    limit_s: LimitSeconds = LIMIT_S,
) -> None:
    """Serve a workload by the vLLM that is installed, or send it to a server that runs, and keep
    its log for testbed validate.

    The overrides give trace, arrivals and workload as in testbed run. The installed vLLM's arrivals
    have the engine's clock and the client's, and every iteration is logged too. A running server
    needs no GPU here; its tokens have the client's times. For example:

    testbed gpu record --from-vllm "vllm serve MODEL" trace=sharegpt arrivals.rate=4 --out log

    testbed gpu record --url http://127.0.0.1:8000 trace=sharegpt arrivals.rate=4 --out log
    """
    from testbed.experiments.runs.compose import configured
    from testbed.workload import make_workload

    if (from_vllm is None) == (url is None):
        raise InputError(
            'gpu record: needs --from-vllm "vllm serve MODEL ..." or --url http://HOST:PORT, and '
            "not both"
        )
    unread = {"python": python} if url else {"model": model, "api-key": api_key}
    _refuse_given(unread, "--url" if url else "--from-vllm")
    workload = make_workload(configured(list(overrides)))
    if url:
        from testbed.experiments.endpoint.record import record_endpoint

        return record_endpoint(url, api_key, model, workload, out, limit_s)
    from testbed.experiments.vllm_engine.record import record as record_log

    record_log(from_vllm or "", workload, python or sys.executable, out, limit_s)


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
def verify_launches(
    model: Annotated[str, Parameter(metavar="MODEL", help="a shipped model")], /
) -> int:
    """Check the GPU engine's graphs, launches ahead and drafts against its plain path.

    On the model's shape with random weights in bf16: the first tokens that differ must be about as
    likely, by a tolerance from two batch sizes of the plain path. Exit code 1 where one is not.
    """
    return int(not commands.verify_launches(model))


@app.command
def speed_up(*overrides: Override) -> None:
    """Measure how much faster the GPU engine is with drafts, beside what is predicted.

    The overrides are those of testbed run. The engine serves the workload with drafts and without;
    then both are simulated, with the drafts that the engine found and accepted. For example:

    testbed gpu speed-up engine=gpu model=opt-13b scheduler=vllm_v1 speculation=ngram
    """
    from testbed.experiments.runs.compose import configured
    from testbed.experiments.runs.speed_up import measured_speed_up

    print(measured_speed_up(configured(list(overrides))))


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
    twice what two batch sizes on one GPU do. Exit code 1 where they differ by more.
    """
    return int(not commands.verify_parallel(model, gpus))


@app.command
def verify_profile(
    profile: Annotated[Path, Parameter(metavar="PROFILE", help="of `testbed gpu calibrate`")],
    /,
    *,
    batches: Annotated[AtLeastOne, Parameter(metavar="N", help="number of batches")] = 100,
    seed: Annotated[WholeNumber, Parameter(metavar="N", help="of the batches")] = 0,
    out: Annotated[Path, Parameter(metavar="FILE", help="CSV of each batch")] | None = None,
) -> int:
    """Check a profile of the GPU engine against random batches on the engine.

    On as many GPUs as the profile is of, with numbers of sequences that it has no point at. Exit
    code 1 where the mean time of decodes, or of iterations with prompts, is wrong by more than 5%.
    """
    return int(not commands.verify_profile(profile, batches, seed, out))


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
        AboveZero, Parameter(metavar="S", help="seconds after which no further pair starts")
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
        WholeNumber, Parameter(help="rounds of random checks, 110 batches each; 0: none")
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
