"""Fits the two constants of the 2023 system that no data sheet has: software time of a worker and of a request.

python -m experiments.paper.fit_2023 SHAREGPT_LENGTHS.csv.gz [--cost analytic]

They are moved until vLLM's two bars of Figure 13, the two `calibrate` rows of paper/reference.csv, come out: ShareGPT
at 2 req/s from the file, Alpaca at 30 req/s from the embedded model. Nothing else is fitted to a published number.
The result stands in conf/cost/sosp23.yaml, which the figures use, or conf/cost/analytic.yaml, whose two are the
software time of a request and the attention kernel's share of the memory bandwidth.
"""

import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from experiments.commands.arguments import Parser
from experiments.commands.one_line import EXIT_BAD_INPUT, one_line
from experiments.paper.scorecard import reference
from experiments.runs.lab import Lab

COMMON = ("model=opt-13b", "+system=vllm", "window_s=[600,3600]")
PANELS = (("trace=sharegpt", "arrivals.rate=2"), ("trace=alpaca", "arrivals.rate=30"))
CONSTANTS = {
    "sosp23": ("choices.overhead_per_worker_s", "choices.overhead_per_request_s"),
    "analytic": ("efficiencies.overhead_per_request_s", "efficiencies.attention_bandwidth"),
}
START = {"sosp23": (3e-3, 3.3e-4), "analytic": (3.3e-4, 0.7)}
STEP = 0.02
TOLERANCE = 0.002
MAX_ROUNDS = 12
Vector = NDArray[np.float64]


def batched(panel: tuple[str, ...], cost: str, constants: tuple[float, float], lab: Lab) -> float:
    """Mean batched requests of vLLM in one panel with these constants."""
    values = {f"cost.{name}": value for name, value in zip(CONSTANTS[cost], constants, strict=True)}
    return float(lab.measure((f"cost={cost}", *COMMON, *panel), values).summary["batch"]["mean_per_iteration"])


def published() -> Vector:
    """The two bars to meet."""
    rows = reference().query("role == 'calibrate' and quantity == 'mean_batched_requests'")
    return rows["published"].astype(float).to_numpy()


def fit(lab: Lab, cost: str, pool: ProcessPoolExecutor) -> tuple[float, float]:
    """Broyden's method on the logarithms of constants and bars."""

    def error(x: Vector) -> Vector:
        constants = float(np.exp(x[0])), float(np.exp(x[1]))
        bars = list(pool.map(partial(batched, cost=cost, constants=constants, lab=lab), PANELS))
        print(f"{constants[0]:.4g}, {constants[1]:.4g}: {bars[0]:.2f} {bars[1]:.2f}", flush=True)
        return np.log(bars) - np.log(published())

    x = np.log(START[cost])
    now = error(x)
    jacobian = np.column_stack([(error(x + STEP * unit) - now) / STEP for unit in np.eye(2)])
    for _ in range(MAX_ROUNDS):
        if np.abs(now).max() < TOLERANCE:
            return float(np.exp(x[0])), float(np.exp(x[1]))
        step = np.clip(np.linalg.solve(jacobian, -now), -0.2, 0.2)
        x, after = x + step, error(x + step)
        jacobian += np.outer(after - now - jacobian @ step, step) / (step @ step)
        now = after
    raise RuntimeError(f"no fit within {TOLERANCE:.1%} in {MAX_ROUNDS} rounds")


def main() -> None:
    """Print the constants as lines for the YAML."""
    parser = Parser(prog="python -m experiments.paper.fit_2023", description=str(__doc__).splitlines()[0])
    parser.add_argument("lengths", type=Path, help="CSV of ShareGPT lengths in the artifact's order")
    parser.add_argument("--cost", choices=CONSTANTS, default="sosp23", help="which model's constants (default: sosp23)")
    try:
        options = parser.parse_args()
        with TemporaryDirectory() as folder, ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
            constants = fit(Lab(Path(folder), (("sharegpt", str(options.lengths)),)), options.cost, pool)
    except Exception as error:
        print(f"fit_2023: error: {one_line(error)}", file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)
    for name, value in zip(CONSTANTS[options.cost], constants, strict=True):
        print(f"{name}: {value:.4g}")


if __name__ == "__main__":
    main()
