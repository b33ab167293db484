"""Errors of a log beside those that the same kind of costs had when they were tested."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from testbed.run.config import RunConfig
from testbed.run.cost_words import tested_percents
from testbed.run.machine import cost_of

MEANS = {"TTFT": "ttft_s_mean", "TPOT": "tpot_s_mean", "latency": "e2e_s_mean"}
FEW = 0.05  # of the tested predictions, that may be further off than an error that is beyond them


def beyond_tested(config: RunConfig, errors: Mapping[str, float]) -> Iterator[str]:
    """A line for each mean that is further off than nearly all predictions by which such costs were
    tested, then the likely causes. errors: in percent, without sign, by metric.
    """
    tested = tested_percents(cost_of(config), config.server)
    found = [
        f"{name} is {errors[metric]:.0f}% off, {_rank(errors[metric], tested[name])}"
        for name, metric in MEANS.items()
        if metric in errors and _is_beyond(errors[metric], tested.get(name, ()))
    ]
    if not found:
        return
    yield f"  the tested error of these costs: {'; '.join(found)}"
    yield (
        "  likely causes: another GPU or host than those of the costs (`testbed gpu calibrate "
        "--system vllm` measures yours), other work on it, or options of the log's server that its "
        "command here lacks: its start-up log has them (release, --enforce-eager, --quantization)"
    )


def _is_beyond(error: float, tested: Sequence[float]) -> bool:
    further = sum(other > error for other in tested)
    return bool(tested) and further <= FEW * len(tested)


def _rank(error: float, tested: Sequence[float]) -> str:
    """The place of an error among those of the tests."""
    nearer = sum(other <= error for other in tested)
    which = f"all {nearer}" if nearer == len(tested) else f"{nearer} of {len(tested)}"
    spread = f"median {median(tested):.0f}%, largest {max(tested):.0f}%"
    return f"further than {which} predictions that tested them ({spread})"
