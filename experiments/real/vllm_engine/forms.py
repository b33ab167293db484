"""The forms of a vLLM's profile: how its times continue what was swept.

A form is chosen by its errors at sizes that are left out (left_out_sizes.py), not by a served log.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pandas as pd

from testbed.experiments.real.vllm_engine.beside_fit import as_alone, beside_decodes
from testbed.experiments.real.vllm_engine.decode_fit import DecodeFit, with_slow_kernels
from testbed.experiments.real.vllm_engine.graph_fit import (
    WithinGraphs,
    as_decodes,
    fit_within_graphs,
)
from testbed.experiments.real.vllm_engine.launch_fit import (
    LaunchFit,
    continued,
    level,
    prompts_by_size,
)
from testbed.experiments.real.vllm_engine.launch_terms import Curve, OfPrompts, prompts_by_terms
from testbed.experiments.real.vllm_engine.prompt_fit import PromptFit
from testbed.experiments.real.vllm_engine.slowness_fit import slowness_points, steady
from testbed.experiments.real.vllm_engine.smooth import (
    Fit,
    Floats,
    least_absolute,
    least_squares,
    rising,
)

Within = Callable[[pd.DataFrame, DecodeFit, LaunchFit, PromptFit, Sequence[int]], WithinGraphs]
Slowness = Callable[[pd.DataFrame, DecodeFit], list[list[float]]]
Beside = Callable[[PromptFit, pd.DataFrame, DecodeFit, LaunchFit, int], PromptFit]


class Form(NamedTuple):
    """prompts: their launches. beyond: a curve of decodes' launches with what is beyond
    its largest batch. of_decodes: their computing, from medians by size. alone: the fit of lone
    prompts beyond the graphs, among which those that take the host as long as the GPU are outliers.
    within_graphs: the computing of prompts in them; empty if it is that of as many decodes.
    beside: prompts beyond them, with decodes. slowness: of the host from moment to moment.
    """

    prompts: OfPrompts
    beyond: Callable[[Curve], Curve]
    of_decodes: Callable[[Sequence[float]], Floats]
    alone: Fit
    within_graphs: Within
    beside: Beside
    slowness: Slowness


OF_SUMS = Form(
    prompts=prompts_by_terms,
    beyond=continued,
    of_decodes=with_slow_kernels,
    alone=least_absolute,
    within_graphs=fit_within_graphs,
    beside=beside_decodes,
    slowness=slowness_points,
)
# of the profiles that ship
BY_SIZE = Form(prompts_by_size, level, rising, least_squares, as_decodes, as_alone, steady)
