"""LLMServingSim's skew_fit.csv: what unequal lengths add, by bins that are labelled by their upper edges."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed.cost.unequal_lengths import AXES
from traces.files import read_table

LABELS = ("kp_label", "n_label", "skew_rate_label", "kv_big_label")
UNIT = {"": 1, "%": 1, "k": 1024}


def unequal_lengths(path: Path, meta: Mapping[str, Any], degree: int) -> tuple[dict[str, Any], str]:
    """The section, and one line about it.

    Its skew is (mean - shortest) / (longest - shortest). An iteration's counts do not hold the shortest context,
    which is short beside the longest where it matters, so it is read as mean / longest.
    """
    columns = read_table(str(path), ["pc", *LABELS, "alpha"])
    past, seqs, skew, longest = (_edges(columns[label]) for label in LABELS)
    points = [
        [int(columns["pc"][i]), past[i], seqs[i], skew[i], longest[i], float(columns["alpha"][i])]
        for i in range(len(columns["pc"]))
    ]
    default = _default(meta, degree)
    section = {
        "covers": "share of t(longest) - t(mean) that a batch of unequal lengths takes beyond t(mean)",
        "axes": list(AXES),
        "columns": ["share"],
        "note": "upper edges of bins; the mean is in percent of the longest (the source's skew with a shortest of 0)",
        "default": 0.0 if default is None else default,
        "points": sorted(points),
    }
    known = "0, as its meta.yaml is not here" if default is None else f"{default}, its own pooled value"
    return section, f"unequal lengths: {len(points):,} measured bins; any other has {known}"


def _default(meta: Mapping[str, Any], degree: int) -> float | None:
    fits = (meta.get("skew_fit") or {}).get("per_tp") or {}
    return (fits.get(degree) or fits.get(str(degree)) or {}).get("alpha_default")


def _edges(labels: list[str]) -> list[int]:
    """The upper edge of each label; a bin above the last edge (`sr>70%`) ends at 100 percent or goes on at the top."""
    known = {label: _edge(label) for label in set(labels)}
    return [known[label] for label in labels]


def _edge(label: str) -> int:
    match = re.fullmatch(r"\w+?(<=|>|=)(\d+)([%k]?)", label)
    if match is None:
        raise ValueError(f"skew_fit.csv: {label!r} is not the label of a bin such as n<=128 or kvB<=16k")
    sign, number, unit = match.groups()
    if sign == ">":
        return 100 if unit == "%" else 2**31 - 1
    return int(number) * UNIT[unit]
