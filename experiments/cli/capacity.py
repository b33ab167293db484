"""`testbed capacity`: the highest rate of a simulated server."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from testbed.experiments.cli.parameters import AboveZero, AsJson, Override, VllmCommand

RUNS = Path("runs/capacity")

Share = Annotated[float, Parameter(help="share of the requests that must meet the SLO")]
LowRate = Annotated[
    AboveZero, Parameter(metavar="RATE", help="lower first guess, moved outward as needed")
]
HighRate = Annotated[AboveZero, Parameter(metavar="RATE", help="upper first guess")]
Precision = Annotated[
    AboveZero, Parameter(metavar="P", help="the rate is known to a factor of 1 + P")
]
RunFolders = Annotated[Path, Parameter(metavar="DIR", help="folders of the simulated rates")]


def capacity(
    *overrides: Annotated[Override, Parameter(required=True)],
    from_vllm: VllmCommand | None = None,
    share: Share = 0.9,
    low: LowRate = 0.5,
    high: HighRate = 2.0,
    precision: Precision = 0.02,
    runs: RunFolders = RUNS,
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

    highest = capacity(
        *expand(from_vllm, list(overrides)),
        share=share,
        low=low,
        high=high,
        precision=precision,
        folder=runs,
        seen=partial(_report, needed=share),
    )
    answer = capacity_answer(highest)
    if json:
        return print_json(answer)
    print(
        f"capacity: {answer.rate:g} req/s, simulated: {100 * answer.share_inside:.1f}% of the "
        f"requests meet the SLO ({100 * share:g}% must), goodput {answer.goodput:.3g} req/s"
    )


def _report(rate: float, inside: float, needed: float) -> None:
    """Print one simulated rate at once, since the whole search may take minutes."""
    verdict = "keeps" if inside >= needed else "misses"
    line = f"{rate:>8g} req/s: {100 * inside:5.1f}% inside, {verdict} {100 * needed:g}%"
    print(line, file=sys.stderr, flush=True)
