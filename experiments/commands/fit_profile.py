"""`testbed fit-profile`: a profile of a server from one or two logs of a benchmark client."""

from collections.abc import Iterator
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from testbed.core.errors import InputError
from testbed.experiments.commands.parser import Parser, at_least_one
from testbed.experiments.commands.validate import add_logs, replayed_logs
from testbed.experiments.runs.whole_files import write_text

if TYPE_CHECKING:
    from testbed.experiments.validation.software_fit import Fitted


DESCRIPTION = (
    "A profile of a server from one or two logs of a benchmark client, without measuring its GPU: the nearest profile "
    "with all kernels scaled by one factor, an iteration's software time and a front end's. The first log is fitted, "
    "the second judges; a single one is halved in time. Example: testbed fit-profile run1.json run2.json "
    "+system=vllm-v1 --model llama-3.1-8b --gpu l40s --out mine.json"
)


def main(argv: list[str]) -> None:
    """Write the profile; print its factors, and how far off it is where it was fitted and where it was not."""
    this = Parser("fit-profile", DESCRIPTION)
    add_logs(this)
    this.add_argument("--from", dest="source", metavar="PROFILE", help="the profile to scale, a file or a name that "
                      "ships (default: one that ships of the model's shape, carried to the GPU)")  # fmt: skip
    this.add_argument("--model", metavar="NAME", help="a model's name, or its config.json (default: the profile's)")
    this.add_argument("--gpu", metavar="NAME", help="a GPU's name, or a data sheet as JSON (default: the profile's)")
    this.add_argument("--tensor-parallel", type=at_least_one, default=1, metavar="N", help="GPUs (default: 1)")
    this.add_argument("--out", type=Path, required=True, metavar="FILE", help="profile JSON to write")
    options = this.parse_intermixed_args(argv)
    from testbed.cost.sections import dump
    from testbed.experiments.commands.console import plain_table, wide_console
    from testbed.experiments.validation.profile_fit import table

    console, base = wide_console(), _base(options)
    with TemporaryDirectory() as folder:
        built, lines, parts = _made(options, base, Path(folder) / "profile.json")
    console.print(f"scaled: {_origin(base)}")
    for line in lines:
        console.print(line)
    console.print(plain_table(("error of", *parts), table(parts)))
    write_text(options.out, dump(built))
    console.print(f"profile: {options.out} (cost=profile cost.path={options.out})")


def _made(options: Any, base: dict[str, Any], path: Path) -> tuple[dict[str, Any], list[str], dict[str, Any]]:
    """The profile, remarks on it, and its errors in each part; `path` is a folder for intermediate profiles."""
    from testbed.cost.sections import dump
    from testbed.experiments.runs.progress import spoken
    from testbed.experiments.validation.log_replay import replay
    from testbed.experiments.validation.profile_fit import errors, fitted_profile, half_time
    from testbed.experiments.validation.software_fit import Problem, fit, front_ends

    write_text(path, dump(base))
    options.arguments += ["cost=profile", f"cost.path={path}"]
    logs, servers, paths = replayed_logs(options, "fit")
    if len(logs) > 2:
        raise InputError(f"{len(logs)} logs: one is fitted and one judges; leave out the others")
    until_s = half_time(logs[0]) if len(logs) == 1 else inf
    names = ["iteration", *front_ends(logs[:1])]
    problem = Problem(logs[:1], [servers[0].config], names, scales=True, until_s=until_s)
    with spoken(problem.progress):
        fitted = fit(problem)
    built = fitted_profile(base, fitted, paths[0])
    write_text(path, dump(built))
    runs = [replay(log, config) for log, (config, _) in zip(logs, servers, strict=True)]
    parts = {
        "fitted": errors(logs[0].times, runs[0].times, until_s=until_s),
        "not fitted": errors(logs[-1].times, runs[-1].times, after_s=0.0 if until_s == inf else until_s),
    }
    return built, [*_report(fitted), *servers[-1].notes], parts


def _base(options: Any) -> dict[str, Any]:
    from testbed.cost.profile import read_profile
    from testbed.experiments.importers.known_shapes import gpu_named, model_named
    from testbed.experiments.validation.profile_fit import carried, nearest

    model = model_named(options.model) if options.model else None
    gpu = gpu_named(options.gpu) if options.gpu else None
    if options.source:
        return carried(read_profile(options.source), model, gpu)
    if model is None or gpu is None:
        raise InputError("--model, --gpu: both select the nearest profile (give both, or a profile by --from)")
    return nearest(model, options.tensor_parallel, gpu)


def _origin(base: dict[str, Any]) -> str:
    print_ = base["fingerprint"]
    source = print_.get("from", print_)
    carried = f", carried to the data sheet of {print_['device']}" if "from" in print_ else ""
    return f"{base['model']['name']} on {base['num_gpus']} x {source.get('device')} ({source.get('source')}){carried}"


def _report(fitted: "Fitted") -> Iterator[str]:
    ((path, factor),) = fitted.slowness.items()
    yield f"all kernels: {factor:.3f} times as long, standard error {fitted.standard_errors[path]:.3f}"
    for name, seconds in fitted.times_s.items():
        yield f"{name:<12}{seconds * 1e6:12.2f} us, standard error {fitted.standard_errors[name] * 1e6:.2f} us"
    for (one, other), value in fitted.alike.items():
        names = [("kernels" if name == path else name) for name in (one, other)]
        yield f"{names[0]} and {names[1]} cannot be separated by this log (correlation {value:+.2f})"
