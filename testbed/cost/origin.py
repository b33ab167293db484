"""Where a run's costs come from, in words, and how far off such costs were when they were tested."""

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from testbed.core.specs import ModelSpec, ServerSpec
from testbed.cost.model import CostModel
from testbed.cost.nearest import OTHER_CACHE, OTHER_GPU, OTHER_MODEL, ROOFLINE

TESTED = Path(__file__).with_name("left_out.csv")  # `testbed validate-costs` writes it
SHIPPED = "measured"  # who measured the profile that a prediction in that table starts from: ours, which ship
NOT_TESTED = "unknown, such costs were not tested"
WHOLE_RUNS = {"TTFT": "ttft_percent", "TPOT": "tpot_percent", "latency": "latency_percent"}


def origin(cost: CostModel, software: Mapping[str, float | None]) -> str:
    """Measured, derived or roofline, with GPU and date, and whose software time is charged; empty: it does not say.

    software: the times of the system that is simulated, as the choices have them; others are the user's own.
    """
    fingerprint: Mapping[str, Any] = getattr(cost, "fingerprint", None) or {}
    where = _where(fingerprint) if fingerprint else getattr(cost, "provenance", "")
    if not where or not hasattr(cost, "software"):
        return where
    choices = getattr(cost, "choices", None)
    is_own = any(getattr(choices, name, value) != value for name, value in software.items())
    return f"{where}; {_software(cost.software, fingerprint)}{', changed' if cost.software and is_own else ''}"


def _where(fingerprint: Mapping[str, Any]) -> str:
    device, began = fingerprint.get("device"), fingerprint.get("from")
    if began is None:
        stand_ins = [f"{part} by {how}" for part, how in fingerprint.get("not_measured", {}).items()]
        but = f", but {', '.join(stand_ins)}" if stand_ins else ""
        return f"{fingerprint.get('source', 'from')} on {device}{_date(fingerprint)}{but}"
    of = f"{began['model']} on " if fingerprint.get("way") in (OTHER_MODEL, OTHER_CACHE) else ""
    cache = ", with another type of K and V" if fingerprint.get("way") == OTHER_CACHE else ""
    return f"derived for {device} from {of}{began.get('device')}{_date(began)}{cache}"


def _date(fingerprint: Mapping[str, Any]) -> str:
    date = fingerprint.get("date") or str(fingerprint.get("profiled_at", ""))[:10]
    return f", {date}" if date else ""


def _software(name: str | None, fingerprint: Mapping[str, Any]) -> str:
    if name is not None:
        return f"software time of {name}"
    return "software time fitted on logs" if "software_fitted_on" in fingerprint else "software time as configured"


def tested(cost: CostModel, server: ServerSpec) -> str:
    """How far off such costs were: of a measured profile on batches that it had not seen, else on profiles left out."""
    fingerprint: Mapping[str, Any] = getattr(cost, "fingerprint", None) or {}
    if fingerprint and "from" not in fingerprint:
        if "tested" in fingerprint:
            return str(fingerprint["tested"])
        fit = getattr(cost, "fit", None)
        if not fit:
            return NOT_TESTED
        return f"{100 * fit['median_error']:.1f}% (median) in {fit['num_batches']} decode batches"
    model = getattr(cost, "model", None)  # of a roofline; the profiles left out are of plain models
    if not fingerprint and (not hasattr(cost, "provenance") or (isinstance(model, ModelSpec) and not model.is_plain)):
        return NOT_TESTED
    return left_out(fingerprint.get("way", OTHER_GPU) if fingerprint else ROOFLINE, server)


def left_out(way: str, server: ServerSpec) -> str:
    """The errors of whole runs by this way, on one GPU or on several; for this GPU if it was tested, else for all."""
    rows = [row for row in table() if row["way"] == way and row["source_by"] in (SHIPPED, "")]
    rows = [row for row in rows if (row["num_gpus"] == "1") == (server.num_gpus == 1)]
    here = [row for row in rows if row["gpu"] == server.gpu.name]
    if not rows:
        return NOT_TESTED
    many = "on one GPU" if server.num_gpus == 1 else "on several GPUs"
    chosen, whose = (here, f"profiles of {server.gpu.name} {many}") if here else (rows, f"profiles {many}")
    reported = []
    for name, column in WHOLE_RUNS.items():
        errors = [abs(float(row[column])) for row in chosen]
        reported.append(f"{name} {median(errors):.0f}% (largest {max(errors):.0f}%)")
    return f"{', '.join(reported)} in whole runs of {len(chosen)} {whose} left out (median)"


@cache
def table() -> list[dict[str, str]]:
    if not TESTED.is_file():
        return []
    with TESTED.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))
