"""`testbed fit-software`, `fit-profile`, `fit-constants`: unmeasured times, fitted to logs or to
published numbers.
"""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from testbed.core.errors import InputError
from testbed.cost.profile import read_profile
from testbed.cost.sections import dump
from testbed.experiments.commands.terminal import plain_table, show
from testbed.experiments.commands.validate import replayed_logs
from testbed.experiments.importers.known_shapes import gpu_named, model_named
from testbed.experiments.runs.progress import spoken
from testbed.experiments.runs.whole_files import write_text
from testbed.experiments.validation import profile_fit
from testbed.experiments.validation.log_replay import PROFILE_COST, replay
from testbed.experiments.validation.software_fit import KEYS, Fitted, Problem, fit, front_ends


def fit_software(options: Namespace) -> None:
    """Print the times, their standard errors and correlated pairs; --out writes them to a
    profile.
    """
    logs, servers, paths = replayed_logs(options, "fit")
    config = servers[0].config
    if config.cost.name != PROFILE_COST:
        raise InputError(
            "software times: need a measured profile's costs (set cost=profile cost.path=FILE)"
        )
    problem = Problem(logs, [one.config for one in servers], [*KEYS, *front_ends(logs)])
    show(*dict.fromkeys(line for one in servers for line in one.notes))
    with spoken(problem.progress):
        fitted = fit(problem)
    show(*report(fitted, problem.names))
    if options.out:
        profile = profile_fit.with_software(
            read_profile(str(config.cost.parameters["path"])), fitted, paths
        )
        write_text(options.out, dump(profile))
        show(f"profile with these times: {options.out}; validate it on other logs")


def report(fitted: Fitted, names: Sequence[str]) -> Iterator[str]:
    """One line per time, per log's slowness and per correlated pair, and the overrides to use."""
    for name in names:
        if name in fitted.times_s:
            value, error = fitted.times_s[name], fitted.standard_errors[name]
            weak = "; not distinguishable from zero" if value < 2 * error else ""
            yield f"{name:<12}{value * 1e6:12.2f} us, standard error {error * 1e6:.2f} us{weak}"
        else:
            yield f"{name:<12}        none (below zero)"
    for path, slowness in fitted.slowness.items():
        spread = fitted.standard_errors.get(path)
        follows = (
            "which follows from the others'" if spread is None else f"standard error {spread:.3f}"
        )
        yield f"{path}: slowness {slowness:.3f}, {follows}"
    if any(
        abs(one - 1) > 2 * fitted.standard_errors.get(path, inf)
        for path, one in fitted.slowness.items()
    ):
        yield (
            "the logs disagree by more than two standard errors: they are not of one machine at "
            "one speed"
        )
    for (one, other), value in fitted.alike.items():
        known = "only their sum is known"
        yield (
            f"{one} and {other} cannot be separated by these logs (correlation {value:+.2f}); "
            f"{known}"
        )
    yield (
        f"remaining error: {100 * fitted.error:.1f}% of a request's TTFT or TPOT, root mean square"
    )
    yield " ".join(
        f"cost.choices.{key}={fitted.times_s.get(name, 0.0):.4g}" for name, key in KEYS.items()
    )


def fit_profile(options: Namespace) -> None:
    """Write the profile; print its factors, and how far off it is where it was fitted and where it
    was not.
    """
    base = _base(options)
    with TemporaryDirectory() as folder:
        built, lines, parts = _made(options, base, Path(folder) / "profile.json")
    made = base["fingerprint"]
    source = made.get("from", made)
    gpus = f"{base['num_gpus']} x {source.get('device')} ({source.get('source')})"
    carried = f", carried to the data sheet of {made['device']}" if "from" in made else ""
    show(f"scaled: {base['model']['name']} on {gpus}{carried}", *lines)
    show(plain_table(("error of", *parts), profile_fit.table(parts)))
    write_text(options.out, dump(built))
    show(f"profile: {options.out} (cost=profile cost.path={options.out})")


def _made(
    options: Any, base: dict[str, Any], path: Path
) -> tuple[dict[str, Any], list[str], dict[str, Any]]:
    """The profile, remarks on it, and its errors in each part; `path` is a folder for intermediate
    profiles.
    """
    write_text(path, dump(base))
    options.arguments += ["cost=profile", f"cost.path={path}"]
    logs, servers, paths = replayed_logs(options, "fit")
    if len(logs) > 2:
        raise InputError(f"{len(logs)} logs: one is fitted and one judges; leave out the others")
    until_s = profile_fit.half_time(logs[0]) if len(logs) == 1 else inf
    names = ["iteration", *front_ends(logs[:1])]
    problem = Problem(logs[:1], [servers[0].config], names, scales=True, until_s=until_s)
    with spoken(problem.progress):
        fitted = fit(problem)
    built = profile_fit.fitted_profile(base, fitted, paths[0])
    write_text(path, dump(built))
    runs = [replay(log, config) for log, (config, _) in zip(logs, servers, strict=True)]
    parts = {
        "fitted": profile_fit.errors(logs[0].times, runs[0].times, until_s=until_s),
        "not fitted": profile_fit.errors(
            logs[-1].times, runs[-1].times, after_s=0.0 if until_s == inf else until_s
        ),
    }
    return built, [*_scaled_by(fitted), *servers[-1].notes], parts


def _base(options: Any) -> dict[str, Any]:
    model = model_named(options.model) if options.model else None
    gpu = gpu_named(options.gpu) if options.gpu else None
    if options.source:
        return profile_fit.carried(read_profile(options.source), model, gpu)
    if model is None or gpu is None:
        raise InputError(
            "--model, --gpu: both select the nearest profile (give both, or a profile by --from)"
        )
    return profile_fit.nearest(model, options.tensor_parallel, gpu)


def _scaled_by(fitted: Fitted) -> Iterator[str]:
    ((path, factor),) = fitted.slowness.items()
    yield (
        f"all kernels: {factor:.3f} times as long, standard error "
        f"{fitted.standard_errors[path]:.3f}"
    )
    for name, seconds in fitted.times_s.items():
        yield (
            f"{name:<12}{seconds * 1e6:12.2f} us, standard error "
            f"{fitted.standard_errors[name] * 1e6:.2f} us"
        )
    for (one, other), value in fitted.alike.items():
        names = [("kernels" if name == path else name) for name in (one, other)]
        yield (
            f"{names[0]} and {names[1]} cannot be separated by this log (correlation {value:+.2f})"
        )


def fit_constants(options: Namespace) -> None:
    """Print the constants as lines for the YAML."""
    from testbed.experiments.paper.fits import (
        fit_2023,
        fit_beams,
        report,
    )  # the other commands do not need it
    from testbed.experiments.runs.run_store import RunStore

    if options.file is None and options.kind == "2023":
        raise InputError("2023: needs the lengths (testbed fit-constants 2023 LENGTHS)")
    if options.file is not None and options.kind == "beams":
        raise InputError(f"beams: reads no file (leave out {options.file})")
    if options.kind == "sampler":
        print("\n".join(report(options.file)))
        return
    with TemporaryDirectory() as folder:
        if options.kind == "beams":
            print(f"concentration: {fit_beams(RunStore(Path(folder))):.3g}")
        else:
            fit_2023(RunStore(Path(folder), (("sharegpt", str(options.file)),)))
