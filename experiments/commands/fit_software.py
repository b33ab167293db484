"""`testbed fit-software`: software times of an iteration, a request and a scheduled token, from logs of a server."""

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments.commands.arguments.fit_software import parser
from experiments.commands.console import wide_console
from experiments.commands.import_profile import dump
from experiments.commands.validate import split
from experiments.runs.identity import content_hash
from experiments.runs.whole_files import write_text
from experiments.validation.log_replay import PROFILE_COST, Log, server_config
from experiments.validation.software_fit import Fitted, fit
from experiments.validation.software_times import KEYS, NAMES
from testbed.core.errors import InputError
from testbed.cost.profile import read_profile


def main(argv: list[str]) -> None:
    """Print the times with their standard errors and what cannot be told apart; --out keeps them in a profile."""
    options = parser().parse_intermixed_args(argv)
    paths, overrides = split(options.arguments)
    if options.workload and len(paths) > 1:
        raise InputError("--workload is the workload of one log; fit the others by themselves")
    config, console = server_config(overrides), wide_console()
    if config.cost._target_ != PROFILE_COST:
        raise InputError("software times are fitted beside a profile's prices; say cost=profile cost.path=FILE")
    fitted = fit([Log(path, options.workload) for path in paths], config, chosen(options.times))
    for line in report(fitted):
        console.print(line, highlight=False)
    if options.out:
        profile = with_software(read_profile(str(config.cost.path)), fitted, paths)
        write_text(options.out, dump(profile))
        console.print(f"profile with these times: {options.out}; validate it on other logs", highlight=False)


def chosen(text: str) -> list[str]:
    """The times to fit."""
    names = text.split(",")
    if unknown := [name for name in names if name not in NAMES]:
        raise InputError(f"--times {text}: {unknown[0]!r} is not one of {', '.join(NAMES)}")
    return names


def report(fitted: Fitted) -> Iterator[str]:
    """One line for each time, for each pair that is alike, and the values to say."""
    for name in NAMES:
        if name in fitted.times_s:
            value, error = fitted.times_s[name], fitted.standard_errors_s[name]
            weak = "; not to be told from zero" if value < 2 * error else ""
            yield f"{name:<10}{value * 1e6:12.2f} us, standard error {error * 1e6:.2f} us{weak}"
        else:
            yield f"{name:<10}        none (not asked for, or below zero)"
    for (one, other), value in fitted.alike.items():
        known = "only what they come to together is known"
        yield f"{one} and {other} cannot be told apart by these logs (correlation {value:+.2f}); {known}"
    yield f"what remains: {100 * fitted.error:.1f}% of a request's TTFT or TPOT, root mean square"
    yield " ".join(f"cost.choices.{KEYS[name]}={fitted.times_s.get(name, 0.0):.4g}" for name in NAMES)


def with_software(profile: dict[str, Any], fitted: Fitted, paths: Sequence[str]) -> dict[str, Any]:
    """The profile with these times; it says which logs they were fitted on, so that validate can say it too."""
    told = copy.deepcopy(profile)
    points = [[name, seconds * 1e6] for name, seconds in fitted.times_s.items()]
    note = "software times fitted on logs of a server"
    told["sections"]["overhead"] = {"covers": "as named", "axes": ["what"], "columns": ["us"], "note": note,
                                    "points": points}  # fmt: skip
    told["fingerprint"]["software_fitted_on"] = {Path(path).name: content_hash(path) for path in paths}
    return told
