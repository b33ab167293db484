"""Keys of a run's summary, and what is read of it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from testbed.cost.model import CostModel
from testbed.cost.sections import SYSTEM

RUN = "run"
ID = "id"
CONTENTS = "contents_note"
UNREAD = "unread_note"
SAMPLES = "samples_note"
CAPPED_BY = "capped_by"  # of a run: the drafter that caps the longest sequence
ENGINES = "engines"  # of a fleet: some numbers of each engine
HANDOVERS = "handovers"  # of prefill apart from decode
PROFILE = "cost_profile"  # the origin of the costs
SOFTWARE = "charged_software"  # of it: the system whose software times come on top
LEFT_OUT = (PROFILE, ENGINES)  # not in a summary's row: nested descriptions
SOURCE = re.compile(r"\w+ \((.*)\)")  # of costs, behind the name of their code


def was_served(summary: Mapping[str, Any]) -> bool:
    """True if the engine served the run in real time, on a GPU or a CPU."""
    return "engine" in summary


def costs_of(summary: Mapping[str, Any]) -> str:
    """The source and the tested error of a simulated run's costs; empty for a run on a GPU."""
    run = summary[RUN]
    if was_served(summary) or "cost_error" not in run:
        return ""
    return f"{source_of_costs(run['cost'])}; error when tested: {run['cost_error']}"


def about(summary: Mapping[str, Any]) -> str:
    """The model, the GPUs of an engine, the number of engines and the workload of a run."""
    run = summary[RUN]
    server = f"{run['model']} on {run['num_gpus']} x {run['gpu']}"
    if "replicas" in run:
        server = f"{run['replicas']} engines, each {server}"
    return f"{server}; requests: {run['trace']}"


def source_of_costs(cost: str) -> str:
    """The source of costs, without the name of the code that reads it; of a cost model that does
    not say it, the name.
    """
    match = SOURCE.fullmatch(cost)
    return match[1] if match else cost


def profile_of(cost: CostModel) -> dict[str, Any] | None:
    """The fingerprint of the profile that costs rest on, and the system whose software times they
    charge beside it; None without a profile.
    """
    if not cost.fingerprint:
        return None
    charged = None if SYSTEM in cost.fingerprint else cost.software
    return {**cost.fingerprint, SOFTWARE: charged}


def origin_of(summary: Mapping[str, Any]) -> str:
    """The GPU that a run's costs are of, the measurements that they rest on, the way from them, and
    the system whose software times are added: costs of two origins have errors of their own.
    Costs that are not measured have others on several GPUs than on one.
    """
    profile, num_gpus = summary.get(PROFILE), summary[RUN]["num_gpus"]
    gpus = f"{num_gpus} x " if num_gpus > 1 else ""
    if not profile:
        return f"without a profile, of {gpus}{summary[RUN]['gpu']}"
    base, charged, device = (profile.get(key) for key in ("from", SOFTWARE, "device"))
    software = f", software time of {charged}" if charged else ""
    if base is None:
        return f"measured on {device}{software}"
    where = f"{base.get('model', 'a profile')} on {base.get('num_gpus', 1)} x {base.get('device')}"
    return f"derived for {gpus}{device} from {where} ({profile.get('way', 'other GPU')}){software}"


def remedy_for_rejections(summary: Mapping[str, Any]) -> str:
    """The way for a server to take requests that it rejects as too long: its pool limits them, or
    the longest sequence that it allows.
    """
    of_run = summary[RUN]
    longest = of_run.get("max_model_len")
    if longest is None:
        return "raise model.max_len or the memory of the pool, or send shorter requests"
    held = of_run["kv_cache_tokens"] - (of_run["block_size"] or 0)  # without the null block
    if held < longest:
        return f"the pool has {held:,} tokens: give it more blocks or memory, or send shorter ones"
    return f"{way_to_longer(of_run.get(CAPPED_BY))}, or send shorter requests"


def way_to_longer(drafter: str | None) -> str:
    """The remedy for a server that rejects requests as too long; drafter: that caps them."""
    if drafter is None:
        return "raise --max-model-len or model.max_len"
    return (
        f"no sequence is longer than the positions of the drafter, {drafter}: give another one or "
        "leave the drafts out, with a --max-model-len above them"
    )


def flat(summary: Mapping[str, Any]) -> dict[str, Any]:
    """A summary as one row; nested keys are joined by an underscore, keys of the run keep their
    names.
    """
    others = {key: value for key, value in summary.items() if key not in (RUN, *LEFT_OUT)}
    return {**summary[RUN], **_joined("", others)}


def merge_axes(axes: Sequence[str], row: Mapping[str, Any]) -> dict[str, Any]:
    """The row, renamed if an axis has the same name: `policy` is the option, policy_in_full all
    its parameters.
    """
    return {f"{key}_in_full" if key in axes else key: value for key, value in row.items()}


def _joined(before: str, values: Mapping[str, Any]) -> dict[str, Any]:
    row = dict[str, Any]()
    for key, value in values.items():
        if isinstance(value, Mapping):
            row |= _joined(f"{before}{key}_", value)
        else:
            row[f"{before}{key}"] = value
    return row
