"""LLMServingSim's skew_fit.csv: what unequal lengths add, by bins that are labelled by their upper edges."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from testbed.cost.unequal_lengths import AXES
from traces.files import read_table

LABELS = ("kp_label", "n_label", "skew_rate_label", "kv_big_label")
UNIT = {"": 1, "%": 1, "k": 1024}
RATIO = 4.0  # its profiler's long lengths over its short ones, where meta.yaml does not say


def unequal_lengths(path: Path, meta: Mapping[str, Any], degree: int) -> tuple[dict[str, Any], list[str]]:
    """The section, and what there is to say about it.

    It measured batches of two lengths, the long ones `skew_rep` times the short ones; its skew is the share s of long
    ones, so that their mean is (1 + (skew_rep - 1) s) / skew_rep of the longest. Its shares are quotients of small
    differences; those below 0 or above 1 are noise, for a batch takes no less than one of equal lengths with as many
    tokens, and no more than if all were as long as the longest.
    """
    columns = read_table(str(path), ["pc", *LABELS, "alpha"])
    past, seqs, skew, longest = (_edges(path, columns[label]) for label in LABELS)
    ratio = float((meta.get("skew_profile", {}).get("grid") or {}).get("skew_rep", RATIO))
    shares = [float(text) for text in columns["alpha"]]
    points = [
        [int(columns["pc"][i]), past[i], seqs[i], _mean_percent(skew[i], ratio), longest[i], min(1.0, max(0.0, share))]
        for i, share in enumerate(shares)
    ]
    default = _default(meta, degree)
    section = {
        "covers": "share of t(longest) - t(mean) that a batch of unequal lengths takes beyond t(mean)",
        "axes": list(AXES),
        "columns": ["share"],
        "note": f"upper edges of bins; measured on batches of two lengths, one {ratio:g} times the other",
        "default": 0.0 if default is None else default,
        "points": sorted(points),
    }
    known = "0, as its meta.yaml is not here" if default is None else f"{default}, its own pooled value"
    outside = sum(not 0 <= share <= 1 for share in shares)
    return section, [
        f"unequal lengths: {len(points):,} measured bins; any other has {known}",
        f"unequal lengths: {outside:,} of the bins lie outside 0 to 1, which is noise, and were cut there",
    ]


def _mean_percent(skew_percent: int, ratio: float) -> int:
    """The mean in percent of the longest, where skew_percent of the lengths are long."""
    return round(100 * (1 + (ratio - 1) * skew_percent / 100) / ratio)


def _default(meta: Mapping[str, Any], degree: int) -> float | None:
    fits = (meta.get("skew_fit") or {}).get("per_tp") or {}
    return (fits.get(degree) or fits.get(str(degree)) or {}).get("alpha_default")


def _edges(path: Path, labels: list[str]) -> list[int]:
    """The upper edge of each label; a bin above the last edge (`sr>70%`) ends at 100 percent or goes on at the top."""
    known = {label: _edge(path, label) for label in set(labels)}
    return [known[label] for label in labels]


def _edge(path: Path, label: str) -> int:
    match = re.fullmatch(r"\w+?(<=|>|=)(\d+)([%k]?)", label)
    if match is None:
        raise InputError(f"{path}: {label!r} is not the label of a bin such as n<=128 or kvB<=16k; mend the file")
    sign, number, unit = match.groups()
    if sign == ">":
        return 100 if unit == "%" else 2**31 - 1
    return int(number) * UNIT[unit]
