"""The cost of a drafter's passes."""

from dataclasses import asdict, replace

from testbed.core.specs import ModelSpec, ServerSpec
from testbed.cost.analytic import AnalyticCost, Efficiencies
from testbed.cost.software import SoftwareTimes


def pass_cost(
    drafter: ModelSpec, server: ServerSpec, efficiencies: Efficiencies | None
) -> AnalyticCost:
    """The roofline of the drafter's shape with these efficiencies, without software times: the
    model's own costs charge these, once an iteration.
    """
    hardware = replace(efficiencies or Efficiencies(), **asdict(SoftwareTimes()))
    return AnalyticCost(drafter, server, hardware)
