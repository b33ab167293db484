"""A cost profile of the user's vLLM, by driving it: `testbed gpu calibrate --system vllm`."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pandas as pd

from testbed.core.errors import InputError
from testbed.core.specs import ModelSpec
from testbed.cost.host_drift import DRIFT, drift_words
from testbed.cost.sections import dump
from testbed.experiments.real.importers.known_shapes import gpu_of_device
from testbed.experiments.real.vllm_engine.asked import check_new
from testbed.experiments.real.vllm_engine.forms import OF_SUMS, Form
from testbed.experiments.real.vllm_engine.front_end_times import REQUESTS, front_end_section
from testbed.experiments.real.vllm_engine.host_scale import with_launches_of
from testbed.experiments.real.vllm_engine.installed import check_installed, engine_words, run_plan
from testbed.experiments.real.vllm_engine.left_out_sizes import spread
from testbed.experiments.real.vllm_engine.logged_steps import left_out, read_steps
from testbed.experiments.real.vllm_engine.pass_drift import drift
from testbed.experiments.real.vllm_engine.profile_check import errors_among
from testbed.experiments.real.vllm_engine.sweep_folders import ABOUT, FACTS, read_swept
from testbed.experiments.real.vllm_engine.sweep_profile import Machine, profile_of
from testbed.experiments.runs.whole_files import write_text
from testbed.experiments.vllm_server.named import model_named
from testbed.vllm.command import read_command, serve_words

KEPT = ("steps.csv", "waves.csv", REQUESTS, FACTS, ABOUT, "vllm.log")
CUT_SHORT = "sweeps_left_out"  # in a fingerprint
START_S = 240.0  # that an engine may take to come up, beside its sweeps
Profile = dict[str, Any]


def calibrate(command: str, python: str, out: Path, keep: Path | None, limit_s: float) -> None:
    """Sweep the vLLM that `command` starts, and write the profile that its iterations give.

    keep: a new folder for the logged iterations. Raises InputError for a command that cannot be
    read, a vLLM that does not start, and iterations that do not suffice.
    """
    model = model_named(read_command(command).model).shape
    if not out.parent.is_dir():
        raise InputError(key="--out", value=out, problem=f"there is no folder {out.parent}")
    if out.is_dir():
        raise InputError(key="--out", value=out, problem="is a folder", remedy="name a file")
    if keep is not None:
        check_new(keep, "--keep")
    check_installed(python)
    with _left_on_failure() as folder:
        plan = {"arguments": engine_words(serve_words(command)), "deadline_s": limit_s}
        run_plan(python, plan, folder, limit_s + START_S)
        if keep is not None:
            keep.mkdir(parents=True)
            for name in KEPT:
                shutil.copy(folder / name, keep)
        today = date.today().isoformat()
        profile = profile_of_sweeps([folder], model, command=command, date=today)
    write_text(out, dump(profile))
    print(*lines(profile), f"profile: {out} (cost=profile cost.path={out})", sep="\n")


@contextmanager
def _left_on_failure() -> Iterator[Path]:
    """A folder that goes afterwards; it stays if something fails, since the error names a file
    in it.
    """
    folder = Path(mkdtemp(prefix="testbed-vllm-"))
    yield folder
    shutil.rmtree(folder)


def profile_of_sweeps(
    folders: Sequence[Path],
    model: ModelSpec,
    launches_from: Profile | None = None,
    form: Form = OF_SUMS,
    **about: str,
) -> Profile:
    """The profile of folders of sweeps; without prompts among decodes it has the launches of
    `launches_from`, scaled to this host's lone prompts. about: more of its fingerprint.
    """
    profile = with_fit(*swept_machine(folders, model, **about), form)
    if launches_from is not None:
        profile = with_launches_of(profile, launches_from)
    for section in filter(None, map(front_end_section, folders)):  # the first with client's times
        return {**profile, "sections": {**profile["sections"], "front_end": section}}
    return profile


def swept_machine(
    folders: Sequence[Path], model: ModelSpec, **about: str
) -> tuple[pd.DataFrame, Machine]:
    """The iterations of the folders, and what was swept. about: more of its fingerprint."""
    swept = read_swept(folders)
    for key, described, name in (
        ("graph_sizes", swept.facts, FACTS),
        ("device", swept.about, ABOUT),
    ):
        if key not in described:
            raise InputError(
                key=folders[0],
                problem=f"no {name} in it or beside it has {key}",
                remedy="give a folder of gpu calibrate --keep",
            )
    fingerprint = {**swept.fingerprint, **about, **_cut_short(folders)}
    steps = pd.concat([read_steps(folder) for folder in folders], ignore_index=True)
    num_gpus, sizes = swept.facts.get("tensor_parallel_size", 1), swept.facts["graph_sizes"]
    gpu = gpu_of_device(fingerprint["device"])
    return steps, Machine(model, num_gpus, sizes, gpu, fingerprint)


def _cut_short(folders: Sequence[Path]) -> dict[str, list[str]]:
    """The sweeps that a time limit has left out, for the fingerprint; nothing if there are
    none.
    """
    names = [name for folder in folders for name in left_out(folder)]
    return {CUT_SHORT: names} if names else {}


def with_fit(steps: pd.DataFrame, machine: Machine, form: Form = OF_SUMS) -> Profile:
    """The profile of these iterations, with its errors of prompts among decodes and of sizes
    left out, and its host's drift.
    """
    profile = profile_of(steps, machine, form)
    errors = errors_among(steps, profile)
    if not errors:
        return profile
    found = {"left_out": spread(steps, machine, form), DRIFT: drift(steps, machine, form)}
    return {**profile, "fit": errors | {name: value for name, value in found.items() if value}}


def lines(profile: Mapping[str, Any]) -> Iterator[str]:
    """Lines on the origin of the profile, and on how well it repeats its sweeps."""
    about = profile["fingerprint"]
    host = about.get("host", "host unknown")
    yield f"{profile['model']['name']} by {about['system']} on {about['device']} ({host})"
    if cut := about.get(CUT_SHORT):
        yield f"out of time before these sweeps, which it lacks: {', '.join(cut)} (--limit-s)"
    if scaled := about.get("launches_from"):
        yield f"no prompts among decodes were logged: launches are those of {scaled}"
    if fit := profile.get("fit"):
        yield (
            f"prompts among decodes, until the end of the next iteration: median "
            f"error {fit['median_error']:.1%}, p95 {fit['p95_error']:.1%}, mean "
            f"{fit['mean_error']:+.1%} of {fit['num_batches']}"
        )
    if front := profile["sections"].get("front_end"):
        ms = {load: us / 1e3 for _, load, us in front["points"]}
        few, many = min(ms), max(ms)
        yield (
            f"front end, to the engine and back: {ms[few]:.2f} ms beside {few} decodes, "
            f"{ms[many]:.2f} beside {many}"
        )
    if fit and (off_by := fit.get("left_out")):
        yield (
            f"sizes of batch left out, standard deviations: launches {off_by['launches']:.1%}, "
            f"decodes alone {off_by['computing']:.1%}; {drift_words(fit)}"
        )
