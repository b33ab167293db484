"""What a fit leaves in a profile: times, scaled kernels, and the logs that it was made on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed.experiments.validation.log_replay import FRONT_END, US
from testbed.experiments.validation.software_fit import FRONT, KEYS, Fitted
from testbed.identity import content_hash

UNSCALED = ("unequal_lengths", "overhead", "all_reduce", "swap")  # shares, software, links: no kernels
NAMES = dict(zip(FRONT, FRONT_END, strict=True))


def with_software(profile: Mapping[str, Any], fitted: Fitted, paths: list[str]) -> dict[str, Any]:
    """The profile with these times. It says which logs they were fitted on, and how slow the machine of each was, so
    that validate can say and use it."""
    points = [[NAMES.get(name, name), fitted.times_s.get(name, 0.0) * US] for name in (*KEYS, *FRONT)]
    overhead = {"covers": "as named", "axes": ["what"], "columns": ["us"],
                "note": "software times fitted on logs of a server", "points": points}  # fmt: skip
    logs = {path: content_hash(path) for path in paths}
    slowness = {logs[path]: value for path, value in fitted.slowness.items()}
    return {
        **profile,
        "sections": {**profile["sections"], "overhead": overhead},
        "fingerprint": {
            **profile["fingerprint"],
            "software_fitted_on": {Path(path).name: digest for path, digest in logs.items()},
            **({"slowness": slowness} if slowness else {}),
        },
    }


def scaled(profile: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """The profile with `factor` times its kernels' times."""
    sections = {
        name: section if name in UNSCALED else {**section, "points": _times(section, factor)}
        for name, section in profile["sections"].items()
    }
    return {**profile, "sections": sections}


def _times(section: Mapping[str, Any], factor: float) -> list[list[Any]]:
    width = len(section["axes"])
    return [[*row[:width], *(round(factor * us, 3) for us in row[width:])] for row in section["points"]]
