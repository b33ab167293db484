"""Fits how sure the synthetic beam model is of its next token, to the one `calibrate` row of Figure 15b (beam 2).

python -m experiments.paper.fit_beams

The result stands as `concentration` in conf/beams/synthetic.yaml; beams of 4 and 6 are predictions.
"""

import sys
from math import sqrt
from pathlib import Path
from tempfile import TemporaryDirectory

from experiments.commands.one_line import EXIT_BAD_INPUT, one_line
from experiments.paper.scorecard import reference
from experiments.runs.lab import Lab, composed

SETTING = "opt-13b alpaca beam 2"
LOW, HIGH, PRECISION = 0.1, 10.0, 0.01


def saving(lab: Lab, concentration: float) -> float:
    """Percent saved at beam width 2 under Figure 15's protocol."""
    figure = composed("figure/fig15", ()).figure
    panel = next(panel for panel in figure.panels if panel.setting == SETTING)
    overrides = ("+system=vllm", *figure.common, *panel.overrides)
    summary = lab.measure(overrides, {"beams.concentration": concentration}).summary
    return 100 * float(summary["memory_saving"]["per_iteration"])


def fit(lab: Lab) -> float:
    """Bisection: less sure candidates change parents more often, and share more."""
    rows = reference()
    published = float(rows[(rows["setting"] == SETTING) & (rows["role"] == "calibrate")]["published"].iloc[0])
    low, high = LOW, HIGH
    while high > low * (1 + PRECISION):
        middle = sqrt(low * high)
        found = saving(lab, middle)
        print(f"concentration {middle:.3f}: {found:.2f}% saved, published {published}%", flush=True)
        low, high = (low, middle) if found > published else (middle, high)
    return sqrt(low * high)


def main() -> None:
    """Print the constant as a line for the YAML."""
    try:
        with TemporaryDirectory() as folder:
            print(f"concentration: {fit(Lab(Path(folder))):.3g}")
    except Exception as error:
        print(f"fit_beams: error: {one_line(error)}", file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)


if __name__ == "__main__":
    main()
