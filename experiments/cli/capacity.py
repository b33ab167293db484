"""`testbed capacity`: the highest rate of a simulated server."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from testbed.experiments.cli.parameters import AboveZero, AsJson, Override, VllmCommand


def capacity(
    *overrides: Annotated[Override, Parameter(required=True)],
    from_vllm: VllmCommand | None = None,
    share: Annotated[float, Parameter(help="share of the requests that must meet the SLO")] = 0.9,
    low: Annotated[
        AboveZero, Parameter(metavar="RATE", help="lower first guess, moved outward as needed")
    ] = 0.5,
    high: Annotated[AboveZero, Parameter(metavar="RATE", help="upper first guess")] = 2.0,
    precision: Annotated[
        AboveZero, Parameter(metavar="P", help="the rate is known to a factor of 1 + P")
    ] = 0.02,
    runs: Annotated[Path, Parameter(metavar="DIR", help="folders of the simulated rates")] = Path(
        "runs/capacity"
    ),
    json: AsJson = False,
) -> None:
    """Find the highest request rate that meets an SLO.

    slo.ttft_s=... (s to the first token), slo.tpot_s=... (s per later token), or both, are among
    the overrides. The rate is found by the bisection of the paper's figures, in requests/s; run
    folders are stored and reused.
    """
    from testbed.api import capacity
    from testbed.experiments.cli.json_answers import capacity_answer
    from testbed.experiments.cli.output import print_json
    from testbed.experiments.vllm_server.translation import expand

    needed = f"{100 * share:g}%"

    def report(rate: float, inside: float) -> None:  # immediately: a search may take minutes
        verdict = "keeps" if inside >= share else "misses"
        line = f"{rate:>8g} req/s: {100 * inside:5.1f}% inside, {verdict} {needed}"
        print(line, file=sys.stderr, flush=True)

    found = capacity(
        *expand(from_vllm, list(overrides)),
        share=share,
        low=low,
        high=high,
        precision=precision,
        folder=runs,
        seen=report,
    )
    answer = capacity_answer(found)
    if json:
        return print_json(answer)
    print(
        f"capacity: {answer.rate:g} req/s, simulated: {100 * answer.share_inside:.1f}% of the "
        f"requests meet the SLO ({needed} must), goodput {answer.goodput:.3g} req/s"
    )
