"""The cost of a drafter's passes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from testbed.core.specs import ModelSpec, ServerSpec
from testbed.cost.analytic import AnalyticCost, Efficiencies

NO_SOFTWARE: Mapping[str, Any] = {
    "software": None,
    "overhead_s": 0.0,
    "overhead_per_request_s": 0.0,
    "overhead_per_token_s": 0.0,
    "overhead_per_sequence_s": 0.0,
    "overhead_per_input_s": 0.0,
    "sequences_per_fork": 0.0,
}


def pass_cost(
    drafter: ModelSpec, server: ServerSpec, efficiencies: Efficiencies | None
) -> AnalyticCost:
    """The roofline of the drafter's shape with these efficiencies, without software times: the
    model's own costs charge these, once an iteration.
    """
    hardware = replace(efficiencies or Efficiencies(), **NO_SOFTWARE)
    return AnalyticCost(drafter, server, hardware)
