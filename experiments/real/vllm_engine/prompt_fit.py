"""What the GPU of a vLLM computes in iterations with prompts.

An iteration of which the GPU is the bottleneck ends later than its launch. Planned when nothing was
under way it also waits for the first of its launch; behind another one it does not.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd

from testbed.core.errors import InputError

WAITED_MS = 1.0  # an iteration that ends so much after its launch waited for the GPU
LONG = 2  # so many times a usual launch: an iteration before that took it was the GPU's
FEWEST = 3  # kinds of prompts


class PromptFit(NamedTuple):
    """Milliseconds of an iteration beyond the largest graph: fixed + per_token x tokens + per_pair
    x pairs of a query and a key.
    """

    fixed: float
    per_token: float
    per_pair: float

    def linear_ms(self, num_tokens: int) -> float:
        """Everything but attention."""
        return self.fixed + self.per_token * num_tokens

    def attention_ms(self, pairs: float) -> float:
        """Attention of all layers."""
        return self.per_pair * pairs


def fit_prompts(
    lone: pd.DataFrame, in_a_row: pd.DataFrame, first_launch_ms: float, largest_graph: int
) -> PromptFit:
    """By least squares over medians, relative errors alike.

    lone: prompts that were planned when nothing was under way, and so waited first_launch_ms.
    in_a_row: those behind others of prompts, whose results are read late where a launch is longer
    than they. Raises InputError with fewer than FEWEST kinds of prompts beyond the graphs that
    waited for the GPU.
    """
    in_a_row = in_a_row[in_a_row.before_ms > LONG * lone.launch.median()]
    prompts = pd.concat([lone.assign(ms=lone.ms - first_launch_ms), in_a_row])
    waited = prompts[(prompts.late_ms > WAITED_MS) & (prompts.num_tokens > largest_graph)]
    kinds = waited.groupby(["num_tokens", "prompt_pairs"]).ms.median().reset_index()
    if len(kinds) < FEWEST:
        raise InputError(
            f"{len(kinds)} kinds of prompts beyond {largest_graph} tokens are computed longer than "
            f"they are launched; {FEWEST} are needed (log prompts of more lengths)"
        )
    terms = np.stack([np.ones(len(kinds)), kinds.num_tokens, kinds.prompt_pairs], axis=1)
    relative = terms / kinds.ms.to_numpy(float)[:, None]
    fixed, per_token, per_pair = np.linalg.lstsq(relative, np.ones(len(kinds)), rcond=None)[0]
    return PromptFit(float(fixed), float(per_token), max(0.0, float(per_pair)))
