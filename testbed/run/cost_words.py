"""The source of a run's costs, in words, and the tested error of such costs."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from enum import Enum
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from testbed.core.specs import GpuSpec, ModelSpec, ServerSpec
from testbed.cost.auto import OTHER_CACHE, OTHER_GPU, OTHER_MODEL, ROOFLINE
from testbed.cost.host_drift import drift_words
from testbed.cost.known_profiles import NAME
from testbed.cost.model import NO_SOFTWARE, CostModel
from testbed.cost.profile import ENGINE
from testbed.cost.sections import SYSTEM, THIS_ENGINE
from testbed.cost.transfer_times import transfers_origin
from testbed.run.config import RunConfig
from testbed.run.identity import ROOT
from testbed.run.machine import cost_of
from testbed.run.summaries import source_of_costs
from testbed.vllm.releases import release_numbered

TESTED = ROOT / "cost" / "left_out.csv"  # `testbed validate costs` writes it
# The source of the profile that a prediction in that table starts from: ours, which ship
SHIPPED = "measured"
BETWEEN_HOSTS = ROOT / "cost" / "between_hosts.csv"
SERVED_LOADS = ROOT / "cost" / "served_loads.csv"
NOT_TESTED = "unknown, such costs were not tested"
WHOLE_RUNS = {"TTFT": "ttft_percent", "TPOT": "tpot_percent", "latency": "latency_percent"}
OF_NO_TIME = ("name", "iterations")  # fields of a SoftwareConfig


def cost_source(config: RunConfig, cost: CostModel) -> str:
    """The cost model of a run and, in brackets, the source of its times."""
    software = asdict(config.software) if config.software else {}
    times = {key: value for key, value in software.items() if key not in OF_NO_TIME}
    name = config.cost.name.rpartition(".")[2]
    where = f"{origin(cost, times)}{_of_release(config, cost)}"
    if config.server.tiers:
        where = f"{where}; transfers: {transfers_origin(config.server)}".removeprefix("; ")
    if config.model.latent and config.model.latent.index_bytes:
        where = f"{where}; attention reads all tokens, not only those that its indexer selects"
    return f"{name} ({where.removeprefix('; ')})" if where else name


def costs_in_words(config: RunConfig) -> str:
    """The source of a server's costs, with host and date if the profile says them, and their tested
    error.
    """
    cost = cost_of(config)
    source = source_of_costs(cost_source(config, cost))
    return f"{source}; error when tested: {tested(cost, config.model, config.server)}"


def origin(cost: CostModel, software: Mapping[str, float | None]) -> str:
    """Measured, derived or roofline, with GPU and date, and whose software time is charged; empty:
    it does not say.

    software: the times of the system that is simulated, as the choices have them; others are the
    user's own.
    """
    fingerprint = cost.fingerprint or {}
    where = _where(fingerprint) if fingerprint else cost.provenance
    if not where or cost.software == NO_SOFTWARE:
        return where
    is_own = any(getattr(cost.times, name, value) != value for name, value in software.items())
    changed = ", changed" if cost.software and is_own else ""
    return f"{where}; {_software(cost.software, fingerprint)}{changed}"


def _of_release(config: RunConfig, cost: CostModel) -> str:
    """The reason for this project's software time in a run of a vLLM; empty without one."""
    if config.release is None or cost.software != ENGINE:
        return ""
    release = release_numbered(config.release)
    if release.software:
        return ""
    return f", since none of vLLM {release.number} was measured, which the tested error leaves out"


def _where(fingerprint: Mapping[str, Any]) -> str:
    device, began = fingerprint.get("device"), fingerprint.get("from")
    if began is None:
        stand_ins = [
            f"{part} by {how}" for part, how in fingerprint.get("not_measured", {}).items()
        ]
        but = f", but {', '.join(stand_ins)}" if stand_ins else ""
        host = f" ({fingerprint['host']})" if fingerprint.get("host") else ""
        return f"{fingerprint.get('source', 'from')} on {device}{host}{_date(fingerprint)}{but}"
    of = f"{began['model']} on " if fingerprint.get("way") in (OTHER_MODEL, OTHER_CACHE) else ""
    cache = ", with another type of K and V" if fingerprint.get("way") == OTHER_CACHE else ""
    return f"derived for {device} from {of}{began.get('device')}{_date(began)}{cache}"


def _date(fingerprint: Mapping[str, Any]) -> str:
    date = fingerprint.get("date") or str(fingerprint.get("profiled_at", ""))[:10]
    return f", {date}" if date else ""


def _software(name: str | None, fingerprint: Mapping[str, Any]) -> str:
    if SYSTEM in fingerprint:
        iterations = f"whole iterations of {fingerprint[SYSTEM]}, its software included"
        taken = f": {fingerprint[NAME]} (cost.iterations=null: none)" if NAME in fingerprint else ""
        return iterations + taken
    if name is not None:
        whose = " (this project's)" if name == ENGINE else ""
        return f"software time of {name}{whose}"
    return (
        "software time fitted on logs"
        if "software_fitted_on" in fingerprint
        else "software time as configured"
    )


class KindOfTests(Enum):
    """The predictions by which costs were tested, before this run."""

    NONE = "none"
    IN_PROFILE = "those that the profile itself states"
    DECODES = "decode batches of a profile of kernels or of this project's engine"
    SERVED = "loads that a server answered, by profiles of its whole iterations"
    LEFT_OUT = "profiles left out, which are of plain models"


def tests_of(cost: CostModel, model: ModelSpec) -> KindOfTests:
    """The tests that costs of this kind had."""
    fingerprint = cost.fingerprint or {}
    if "from" in fingerprint:
        return KindOfTests.LEFT_OUT
    if not fingerprint:
        return KindOfTests.LEFT_OUT if cost.provenance and model.is_plain else KindOfTests.NONE
    if "tested" in fingerprint:
        return KindOfTests.IN_PROFILE
    if not cost.fit:
        return KindOfTests.NONE
    is_own = fingerprint.get(SYSTEM, THIS_ENGINE) == THIS_ENGINE
    return KindOfTests.DECODES if is_own else KindOfTests.SERVED


def tested(cost: CostModel, model: ModelSpec, server: ServerSpec) -> str:
    """The error of such costs: of a measured profile on batches that it had not seen, else on
    profiles left out, on top of which measured costs have an error of their own.
    """
    fingerprint, fit = cost.fingerprint or {}, cost.fit or {}
    match tests_of(cost, model):
        case KindOfTests.NONE:
            return NOT_TESTED
        case KindOfTests.IN_PROFILE:
            return str(fingerprint["tested"])
        case KindOfTests.LEFT_OUT:
            against_profiles = left_out(way_of(fingerprint, server.gpu), server)
            on_top = f"; measured costs' own error comes on top, nearest test: {served_loads()}"
            return f"{against_profiles}{on_top if fingerprint else ''}"
        case KindOfTests.DECODES:
            kind = "of this engine" if SYSTEM in fingerprint else "of kernels"
            return (
                f"{_of_fit(fit)} decode batches; not tested for TTFT and whole loads with "
                f"this profile, {kind}; nearest test: {served_loads()}"
            )
        case KindOfTests.SERVED:
            among = f"{_of_fit(fit)} iterations with prompts and decodes"
            return f"{among}{_at_sizes_left_out(fit)}; {between_hosts()}; {served_loads()}"


def _of_fit(fit: Mapping[str, Any]) -> str:
    return f"{100 * fit['median_error']:.1f}% (median) in {fit['num_batches']}"


def _at_sizes_left_out(fit: Mapping[str, Any]) -> str:
    """The standard deviations that intervals are drawn by, and what they change most."""
    if "left_out" not in fit:
        return ""
    launches, computing = (fit["left_out"][part] for part in ("launches", "computing"))
    return (
        f"; at sizes left out launches {launches:.1%}, which TTFT follows, and computing "
        f"{computing:.1%}, which latency follows (--sensitivity draws them); {drift_words(fit)}"
    )


def between_hosts() -> str:
    """The error of a vLLM's profile of another host."""
    rows = table_rows(BETWEEN_HOSTS)
    found = _errors(rows, {"latency": "latency_percent", "TTFT p50": "ttft_p50_percent"})
    return f"of another host {found} in {len(rows)} predictions (median)"


def served_loads() -> str:
    """The error of loads that a vLLM served, predicted by sweeps of the host that served them."""
    rows = table_rows(SERVED_LOADS)
    return (
        f"{len(rows)} loads of Llama-3.1-8B that vLLM served on H200s, predicted by sweeps of "
        f"their own hosts: {_errors(rows, WHOLE_RUNS)} (median)"
    )


def _errors(rows: Sequence[Mapping[str, str]], columns: Mapping[str, str]) -> str:
    """The median and the largest error of each column, by its name."""
    found = []
    for name, column in columns.items():
        errors = [abs(float(row[column])) for row in rows]
        found.append(f"{name} {median(errors):.0f}% (largest {max(errors):.0f}%)")
    return ", ".join(found)


def tested_percents(
    cost: CostModel, model: ModelSpec, server: ServerSpec
) -> dict[str, list[float]]:
    """Errors of whole runs by which such costs were tested, without sign, by TTFT, TPOT and
    latency; empty if none were.
    """
    tests = tests_of(cost, model)
    rows: list[dict[str, str]] = []
    if tests is KindOfTests.SERVED:
        rows = [*table_rows(BETWEEN_HOSTS), *table_rows(SERVED_LOADS)]
    elif tests is KindOfTests.LEFT_OUT:
        way = way_of(cost.fingerprint or {}, server.gpu)
        rows = next(reversed(_tested_by(way, server)), [])
    return {
        name: [abs(float(row[column])) for row in rows if column in row]
        for name, column in WHOLE_RUNS.items()
        if rows
    }


class Way(NamedTuple):
    """A way to derive costs: its name in the table, and if it goes to another GPU (None: either, or
    from no profile).
    """

    name: str
    is_to_other_gpu: bool | None

    @property
    def rows(self) -> list[dict[str, str]]:
        """The predictions that came this way from profiles that ship, or from none."""
        return [
            row
            for row in left_out_rows()
            if row["way"] == self.name
            and row["source_by"] in (SHIPPED, "")
            and self.is_to_other_gpu in (None, row["gpu"] != row["source_gpu"])
        ]


def way_of(fingerprint: Mapping[str, Any], gpu: GpuSpec) -> Way:
    """The way of costs derived for a GPU; a roofline's without a fingerprint."""
    if not fingerprint:
        return Way(ROOFLINE, None)
    began = fingerprint["from"].get("device")
    return Way(fingerprint.get("way", OTHER_GPU), began not in (gpu.name, gpu.device))


def left_out(way: Way, server: ServerSpec) -> str:
    """The errors of whole runs by this way, on one GPU or on several; if this GPU was tested, of
    its profiles, with their models, and then of all such GPUs.
    """
    subsets = _tested_by(way, server)
    if not subsets:
        return NOT_TESTED
    many = "on one GPU" if server.num_gpus == 1 else "on several GPUs"
    *own, tested_ones = subsets
    wide = _in_whole_runs(tested_ones, f"profiles {many} left out (median)")
    if not own:
        return wide
    models = ", ".join(sorted({row["model"] for row in own[0]}))
    of_gpu = f"profiles of {server.gpu.name} {many} left out ({models}; median)"
    return f"{_in_whole_runs(own[0], of_gpu)}; of all such GPUs {wide}"


def _in_whole_runs(rows: Sequence[Mapping[str, str]], of_profiles: str) -> str:
    found = f"{_errors(rows, WHOLE_RUNS)} in whole runs of {len(rows)} {of_profiles}"
    signs = {float(row[WHOLE_RUNS["latency"]]) > 0 for row in rows}
    if len(signs) > 1 or len(rows) == 1:
        return found
    return f"{found}, each with latencies too {'long' if signs == {True} else 'short'}"


def left_out_error(cost: CostModel, server: ServerSpec) -> float | None:
    """The relative error of the latency of whole runs with such derived costs, or with a roofline:
    the largest of the medians that `left_out` says; of derived costs that were not tested of those
    of all others. None: the costs are of another kind, or none were tested.
    """
    fingerprint = cost.fingerprint or {}
    is_roofline = not fingerprint and bool(cost.provenance)
    if "from" not in fingerprint and not is_roofline:
        return None
    subsets = _tested_by(way_of(fingerprint, server.gpu), server) or [
        rows for other in (OTHER_GPU, OTHER_MODEL) for rows in _tested_by(Way(other, None), server)
    ]
    medians = [median(abs(float(row[WHOLE_RUNS["latency"]])) for row in rows) for rows in subsets]
    return max(medians) / 100 if medians else None


def _tested_by(way: Way, server: ServerSpec) -> list[list[dict[str, str]]]:
    """The predictions by this way, on one GPU or on several; before them those for this GPU, if
    other GPUs were tested too. Nothing if none was.
    """
    rows = [row for row in way.rows if (row["num_gpus"] == "1") == (server.num_gpus == 1)]
    own = [row for row in rows if row["gpu"] == server.gpu.name]
    if 0 < len(own) < len(rows):
        return [own, rows]
    return [rows] if rows else []


def left_out_rows() -> list[dict[str, str]]:
    """Errors of predictions from a profile for another one, which was left out; a row for each."""
    return table_rows(TESTED)


@cache
def table_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a table below its comments; none if there is no such file."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))
