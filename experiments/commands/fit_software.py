"""`testbed fit-software`: fits software times of a server's engine and front end to its logs."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.core.errors import InputError
from testbed.experiments.commands.parser import Parser
from testbed.experiments.commands.validate import add_logs, replayed_logs
from testbed.experiments.runs.whole_files import write_text

if TYPE_CHECKING:
    from testbed.experiments.validation.software_fit import Fitted


def main(argv: list[str]) -> None:
    """Print the times, their standard errors and correlated pairs; --out writes them to a profile."""
    this = Parser(
        "fit-software",
        "Fits software times of a server to its logs: per iteration, running request and scheduled token, and of the "
        "front end before the first token and after the last. Each of several logs has a slowness relative to their "
        "median, which the profile describes.",
    )
    add_logs(this)
    this.add_argument("--out", type=Path, metavar="FILE", help="write the profile with these times")
    options = this.parse_intermixed_args(argv)
    logs, servers, paths = replayed_logs(options, "fit")
    from testbed.cost.profile import read_profile
    from testbed.cost.sections import dump
    from testbed.experiments.commands.console import wide_console
    from testbed.experiments.runs.progress import spoken
    from testbed.experiments.validation.log_replay import PROFILE_COST
    from testbed.experiments.validation.profile_fit import with_software
    from testbed.experiments.validation.software_fit import KEYS, Problem, fit, front_ends

    config, console = servers[0].config, wide_console()
    if config.cost.name != PROFILE_COST:
        raise InputError("software times: need a measured profile's costs (set cost=profile cost.path=FILE)")
    problem = Problem(logs, [one.config for one in servers], [*KEYS, *front_ends(logs)])
    for line in dict.fromkeys(line for one in servers for line in one.notes):
        console.print(line)
    with spoken(problem.progress):
        fitted = fit(problem)
    for line in report(fitted, problem.names):
        console.print(line)
    if options.out:
        write_text(options.out, dump(with_software(read_profile(str(config.cost.parameters["path"])), fitted, paths)))
        console.print(f"profile with these times: {options.out}; validate it on other logs")


def report(fitted: "Fitted", names: Sequence[str]) -> Iterator[str]:
    """One line per time, per log's slowness and per correlated pair, and the overrides to use."""
    from testbed.experiments.validation.software_fit import KEYS

    for name in names:
        if name in fitted.times_s:
            value, error = fitted.times_s[name], fitted.standard_errors[name]
            weak = "; not distinguishable from zero" if value < 2 * error else ""
            yield f"{name:<12}{value * 1e6:12.2f} us, standard error {error * 1e6:.2f} us{weak}"
        else:
            yield f"{name:<12}        none (below zero)"
    for path, slowness in fitted.slowness.items():
        spread = fitted.standard_errors.get(path)
        follows = "which follows from the others'" if spread is None else f"standard error {spread:.3f}"
        yield f"{path}: slowness {slowness:.3f}, {follows}"
    if any(
        abs(fitted.slowness[path] - 1) > 2 * fitted.standard_errors.get(path, float("inf")) for path in fitted.slowness
    ):
        yield "the logs disagree by more than two standard errors: they are not of one machine at one speed"
    for (one, other), value in fitted.alike.items():
        known = "only their sum is known"
        yield f"{one} and {other} cannot be separated by these logs (correlation {value:+.2f}); {known}"
    yield f"remaining error: {100 * fitted.error:.1f}% of a request's TTFT or TPOT, root mean square"
    yield " ".join(f"cost.choices.{key}={fitted.times_s.get(name, 0.0):.4g}" for name, key in KEYS.items())
