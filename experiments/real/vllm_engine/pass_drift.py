"""The drift of a host between the passes of its sweeps, by its launches of the same prompts.

Launches of the same number of prompts among as many decodes take the same work; a host that is
slower for some minutes takes longer for all of them.
"""

from typing import Any

import pandas as pd

from testbed.cost.host_drift import BEGAN, SLOWNESS
from testbed.experiments.real.vllm_engine.decode_fit import fit_decodes
from testbed.experiments.real.vllm_engine.forms import OF_SUMS, Form
from testbed.experiments.real.vllm_engine.launch_fit import seen_launches
from testbed.experiments.real.vllm_engine.logged_steps import (
    KIND,
    prompts_among_decodes,
    steady_decodes,
)
from testbed.experiments.real.vllm_engine.sweep_profile import Machine


def drift(steps: pd.DataFrame, machine: Machine, form: Form = OF_SUMS) -> dict[str, Any] | None:
    """The begin of each pass (s, from the first one's) and the time of its launches over the mean
    of all passes, by the kinds that all of them saw; None with fewer than two passes.
    """
    decodes = fit_decodes(steady_decodes(steps), sorted(machine.graph_sizes), form.of_decodes)
    seen = seen_launches(prompts_among_decodes(steps), decodes)
    seen = seen[seen.is_seen].assign(launch=seen.before_ms + seen.handed_ms)
    medians = seen.groupby([*KIND, "pass_s"]).launch.median().unstack("pass_s").dropna()
    if medians.empty or len(medians.columns) < 2:
        return None
    of_pass = medians.sum()
    return {
        BEGAN: [round(float(began - of_pass.index[0])) for began in of_pass.index],
        SLOWNESS: [round(float(ms / of_pass.mean()), 3) for ms in of_pass],
    }
