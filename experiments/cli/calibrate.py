"""`testbed calibrate fit profile|steps|memory|constants`: unmeasured times and the memory of
servers, fitted to logs or to published numbers.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

from cyclopts import App, Parameter

from testbed.core.errors import InputError
from testbed.experiments.cli.parameters import (
    AtLeastOne,
    GpuName,
    ModelName,
    ProfileOut,
)
from testbed.experiments.cli.replayed_logs import (
    LogConfigFolder,
    LogRequest,
    LogWord,
    Workload,
)
from testbed.vllm.releases import MEASURED

app = App(name="calibrate", help="Fit unmeasured times to logs or published numbers.")
fit = App(name="fit", help="Fit a server's profile or memory, or the paper's constants.")
app.command(fit)

StartingProfile = Annotated[
    str | None,
    Parameter(
        name="--from",
        metavar="PROFILE",
        help="the profile to scale, a file or a name that ships (default: one that ships of "
        "the model's shape, carried to the GPU)",
    ),
]
NumGpus = Annotated[AtLeastOne, Parameter(help="GPUs")]


@fit.command
def profile(
    *words: LogWord,
    workload: Workload | None = None,
    config_dir: LogConfigFolder | None = None,
    source: StartingProfile = None,
    model: ModelName = None,
    gpu: GpuName = None,
    tensor_parallel: NumGpus = 1,
    out: ProfileOut,
) -> None:
    """Fit a server's profile to a benchmark client's logs, without measuring its GPU.

    The nearest profile with all kernels scaled by one factor, an iteration's software time and a
    front end's. The first log is fitted, the second judges; a single one is halved in time.
    For example:

    testbed calibrate fit profile run1.json run2.json +system=vllm-v1 --model llama-3.1-8b
    --gpu l40s --out mine.json
    """
    from testbed.cost.sections import dump
    from testbed.experiments.cli.output import plain_table, show
    from testbed.experiments.real.validation import profile_fit, scaled_profile
    from testbed.experiments.runs.whole_files import write_text

    request = LogRequest("calibrate fit profile", words, workload, config_dir)
    base = scaled_profile.starting_profile(source, model, gpu, tensor_parallel)
    scaled = scaled_profile.scaled(
        base, lambda path: request.with_words("cost=profile", f"cost.path={path}").replayed()
    )
    show(scaled_profile.description(base), *scaled.remarks)
    show(plain_table(("error of", *scaled.errors), profile_fit.table(scaled.errors)))
    write_text(out, dump(scaled.profile))
    show(f"profile: {out} (cost=profile cost.path={out})")


@fit.command
def steps(
    *folders: Annotated[
        Path,
        Parameter(
            name="FOLDER",
            required=True,
            help="with a steps.csv of logged iterations; facts.json and machine.json in it or "
            "beside it",
        ),
    ],
    model: Annotated[str, Parameter(metavar="NAME", help="a model's name, or its config.json")],
    out: ProfileOut,
) -> None:
    """Fit a vLLM's profile to sweeps of its logged iterations.

    As testbed gpu calibrate --system vllm does with its own. The columns of a steps.csv are in
    experiments/VLLM_SERVERS.md. Logs of served workloads are for testbed validate, not for this.
    """
    from testbed.cost.profile import read_profile
    from testbed.cost.sections import dump
    from testbed.experiments.real.importers.known_shapes import model_named
    from testbed.experiments.real.vllm_engine.calibrate_vllm import lines, profile_of_sweeps
    from testbed.experiments.runs.whole_files import write_text

    profile = profile_of_sweeps(folders, model_named(model), read_profile(MEASURED))
    write_text(out, dump(profile))
    print(*lines(profile), f"profile: {out} (cost=profile cost.path={out})", sep="\n")


@fit.command
def memory(
    folder: Annotated[Path, Parameter(name="FOLDER", help="*.csv or *.log of start-ups")],
    /,
    *,
    gpu: Annotated[str, Parameter(metavar="NAME", help="the GPU of all of them")] = "h100-80gb",
    model: Annotated[
        str | None, Parameter(metavar="NAME", help="the model, if a table has no such column")
    ] = None,
    out: Annotated[
        Path | None, Parameter(metavar="FILE", help="write the terms, for testbed fits --terms")
    ] = None,
) -> None:
    """Fit the memory of a vLLM server beside weights and KV cache to logged start-ups.

    Logs are of VLLM_LOGGING_LEVEL=DEBUG, each below its command; a CSV has a row for each start-up
    (columns as in experiments/VLLM_SERVERS.md). Prints the terms and the error of every shape by a
    fit without it.
    """
    from testbed.experiments.cli.output import plain_table, show
    from testbed.experiments.runs.whole_files import write_text
    from testbed.experiments.vllm_server import memory_fit
    from testbed.experiments.vllm_server.startup_logs import start_ups_of

    start_ups = start_ups_of(folder, gpu, model)
    fitted = memory_fit.fitted_terms(start_ups)
    errors = memory_fit.errors_by_shape(start_ups)
    show(*memory_fit.term_lines(fitted, start_ups))
    if errors:
        show(plain_table(memory_fit.HEAD, memory_fit.rows_of(errors)))
    show(memory_fit.summary_of(errors))
    if out:
        write_text(out, memory_fit.toml_of(fitted, str(folder)))
        show(f"terms: {out} (testbed fits ... --terms {out})")


@fit.command
def constants(
    kind: Annotated[Literal["2023", "beams", "sampler"], Parameter(name="KIND", help="see above")],
    file: Annotated[
        Path | None,
        Parameter(
            name="FILE",
            help="2023: CSV of ShareGPT lengths in the artifact's order",
        ),
    ] = None,
    /,
) -> None:
    """Fit the paper's unmeasured constants.

    2023: software times of the 2023 system, to two bars of Figure 13; beams: the concentration of
    synthetic beams, to a beam width of 2 in Figure 15b; sampler: the time of a plain request over
    requests, sequences and forks. Prints the constants as lines for the YAML.
    """
    from testbed.experiments.paper.fitted_constants import fit_2023, fit_beams, report
    from testbed.experiments.runs.run_store import RunStore

    if file is None and kind == "2023":
        raise InputError(
            key="2023",
            problem="needs the lengths",
            remedy="testbed calibrate fit constants 2023 LENGTHS",
        )
    if file is not None and kind != "2023":
        raise InputError(key=kind, problem="reads no file", remedy=f"leave out {file}")
    if kind == "sampler":
        print("\n".join(report()))
        return
    with TemporaryDirectory() as folder:
        if kind == "beams":
            print(f"concentration: {fit_beams(RunStore(Path(folder))):.3g}")
        else:
            fit_2023(RunStore(Path(folder), (("sharegpt", str(file)),)))
