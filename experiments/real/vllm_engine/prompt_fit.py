"""Times of the GPU of a vLLM in iterations with prompts.

An iteration of which the GPU is the bottleneck ends later than its launch. Planned when nothing was
under way it also waits for the first of its launch; behind another one it does not.
"""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from testbed.core.errors import InputError
from testbed.experiments.real.vllm_engine.smooth import Fit

WAITED_MS = 1.0  # an iteration that ends so much after its launch waited for the GPU
LONG = 1.5  # launches of many prompts take up to so many times as long as those of one
FEWEST = 3  # kinds of prompts


class PromptFit(NamedTuple):
    """Milliseconds of an iteration beyond the largest graph: fixed + per_token x tokens + per_pair
    x pairs of a query and a key + per_decode x decodes beside, without their own attention.

    later_ms: so much later than of decodes the GPU has the first of a launch.
    """

    fixed: float
    per_token: float
    per_pair: float
    per_decode: float = 0.0
    later_ms: float = 0.0

    def linear_ms(self, num_tokens: Any) -> Any:
        """Everything but attention and decodes, of a number of tokens or a series of them."""
        return self.fixed + self.per_token * num_tokens

    def attention_ms(self, pairs: Any) -> Any:
        """Attention of all layers, alike."""
        return self.per_pair * pairs


def fit_prompts(
    lone: pd.DataFrame,
    in_a_row: pd.DataFrame,
    first_launch_ms: float,
    largest_graph: int,
    fit: Fit,
) -> PromptFit:
    """Fit to medians, relative errors alike.

    lone: prompts that were planned when nothing was under way, and so waited first_launch_ms.
    in_a_row: those behind others of prompts; if they are launched longer than those are computed,
    their results say nothing of the GPU. Raises InputError with fewer than FEWEST kinds of prompts
    beyond the graphs that waited for the GPU.
    """
    prompts = lone.assign(ms=lone.ms - first_launch_ms)
    behind = in_a_row[_is_launched_in_time(in_a_row, prompts, largest_graph, fit)]
    kinds = _kinds(pd.concat([prompts, behind]), largest_graph)
    if len(kinds) < FEWEST:
        raise InputError(
            key="the logged prompts",
            problem=(
                f"{len(kinds)} kinds of more than {largest_graph} tokens are computed longer than "
                f"they are launched; {FEWEST} are needed"
            ),
            remedy="log prompts of more lengths",
        )
    return _of_kinds(kinds, fit)


def _is_launched_in_time(
    in_a_row: pd.DataFrame, lone: pd.DataFrame, largest_graph: int, fit: Fit
) -> pd.Series:
    """True if the GPU computed the iteration before, by lone prompts, LONG times as long as a
    launch beyond the graphs takes: then it had this one in time, which took it the time between
    both results. All, if there are too few lone prompts to say.
    """
    beyond = lone[lone.num_tokens > largest_graph]
    kinds = _kinds(lone, largest_graph)
    if len(kinds) < FEWEST:
        return pd.Series(True, index=in_a_row.index)
    alone = _of_kinds(kinds, fit)
    before_ms = alone.linear_ms(in_a_row.tokens_before) + alone.attention_ms(in_a_row.pairs_before)
    return before_ms > LONG * beyond.launch.median()


def _kinds(prompts: pd.DataFrame, largest_graph: int) -> pd.DataFrame:
    """Median times of the kinds of prompts beyond the graphs that waited for the GPU."""
    waited = prompts[(prompts.late_ms > WAITED_MS) & (prompts.num_tokens > largest_graph)]
    return waited.groupby(["num_tokens", "prompt_pairs"]).ms.median().reset_index()


def _of_kinds(kinds: pd.DataFrame, fit: Fit) -> PromptFit:
    terms = np.stack([np.ones(len(kinds)), kinds.num_tokens, kinds.prompt_pairs], axis=1)
    fixed, per_token, per_pair = fit(terms, kinds.ms.to_numpy(float))
    return PromptFit(float(fixed), float(per_token), max(0.0, float(per_pair)))
