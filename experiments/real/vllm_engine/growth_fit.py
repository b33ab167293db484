"""The growth of launches of prompts with the requests, if no prompts among decodes are logged.

Sweeps that were logged without them have prompts behind other prompts: behind an iteration that is
computed for less time than a launch takes, the launch is seen. There are few of them, so they are
pooled by doublings of the requests with lone prompts.
"""

from typing import Any

import pandas as pd

from testbed.experiments.real.vllm_engine.decode_fit import DecodeFit
from testbed.experiments.real.vllm_engine.launch_fit import OVER, prompts_by_size
from testbed.experiments.real.vllm_engine.launch_terms import Curve
from testbed.experiments.real.vllm_engine.prompt_fit import PromptFit

FEWEST = 4  # iterations that a pool's median rests on


def fit_growth(
    lone: pd.DataFrame,
    behind_prompts: pd.DataFrame,
    decodes: DecodeFit,
    prompts: PromptFit,
    largest_graph: int,
) -> dict[int, Curve]:
    """Launches of prompts by requests, up to the largest pool; each pool counts at the most
    requests in it.
    """
    behind = _seen(behind_prompts, decodes, prompts, largest_graph)
    short = behind[behind.hidden_ms < lone.launch.median()]
    every = pd.concat([lone.assign(is_seen=True), short.assign(launch=short.before_ms)])
    is_large = every.num_tokens > largest_graph
    return prompts_by_size(_pooled(every, is_large), largest_graph).curves


def _seen(
    rows: pd.DataFrame, decodes: DecodeFit, prompts: PromptFit, largest_graph: int
) -> pd.DataFrame:
    """With how long the iteration before is computed, and whether the launch lasted longer."""
    hidden_ms = pd.Series(
        [_computing_ms(row, decodes, prompts, largest_graph) for row in rows.itertuples()],
        index=rows.index,
        dtype=float,
    )
    return rows.assign(hidden_ms=hidden_ms, is_seen=rows.before_ms > OVER * hidden_ms)


def _computing_ms(row: Any, decodes: DecodeFit, prompts: PromptFit, largest_graph: int) -> float:
    """The time of the iteration before: as many decodes in the graphs, with a longer output."""
    if row.tokens_before > largest_graph:
        linear_ms = prompts.linear_ms(row.tokens_before)
    else:
        linear_ms = decodes.ms(row.tokens_before, 0)
    return float(linear_ms + prompts.attention_ms(row.pairs_before))


def _pooled(rows: pd.DataFrame, is_large: pd.Series) -> pd.DataFrame:
    """The rows of pools that have enough of them, with the pool's most requests."""
    doubling = rows.num_seqs.map(int.bit_length)
    pools = rows.num_seqs.groupby([is_large, doubling])
    pooled = rows.assign(num_seqs=pools.transform("max"))
    return pooled[pools.transform("size") >= FEWEST]
