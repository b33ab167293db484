"""The time that decodes take beside prompts beyond the largest graph.

Lone prompts have 1,024 or 2,048 tokens, whose matrix products are fast; with a hundred decodes
they are not, and attention reads a decode's tokens by the kernel of prompts (on one H200, at 6,000
tokens of context each, 1.3 times as long). And lone prompts wait for the first of their launch,
which the GPU has later than that of decodes, since it is no graph.
"""

import numpy as np
import pandas as pd

from testbed.experiments.real.vllm_engine.decode_fit import DecodeFit
from testbed.experiments.real.vllm_engine.graph_fit import attention_ms, on_gpu_ms
from testbed.experiments.real.vllm_engine.launch_fit import LaunchFit
from testbed.experiments.real.vllm_engine.prompt_fit import PromptFit

WAITED = 2.0  # launches of decodes; results that took so long to come were waited for
FEWEST = 8  # kinds of prompts among decodes
KIND = ["num_tokens", "prompt_pairs", "decodes"]


def beside_decodes(
    prompts: PromptFit,
    among: pd.DataFrame,
    decodes: DecodeFit,
    launches: LaunchFit,
    largest_graph: int,
) -> PromptFit:
    """The fit to lone prompts, with what each decode adds, and without the part of its fixed time
    that is a wait for the first of the launch; unchanged if too few kinds waited for the GPU.
    """
    seen = _seen(among, prompts, decodes, launches, largest_graph)
    kinds = seen.groupby(KIND)[["more", "computing"]].median().reset_index()
    if len(kinds) < FEWEST or kinds.decodes.nunique() < 2:
        return prompts
    weights = 1 / kinds.computing.to_numpy(float)
    per_decode, fixed = np.polyfit(kinds.decodes, kinds.more, 1, w=weights)
    if per_decode < 0:
        per_decode, fixed = 0.0, np.average(kinds.more, weights=weights**2)
    later_ms = float(np.clip(-fixed, 0.0, prompts.fixed))
    return prompts._replace(
        fixed=prompts.fixed - later_ms, per_decode=float(per_decode), later_ms=later_ms
    )


def as_alone(prompts: PromptFit, *fits: object) -> PromptFit:
    """The fit to lone prompts as it is."""
    return prompts


def _seen(
    among: pd.DataFrame,
    prompts: PromptFit,
    decodes: DecodeFit,
    launches: LaunchFit,
    largest_graph: int,
) -> pd.DataFrame:
    """The iterations that were computed for longer than they were launched, and whose results were
    waited for: how long they would compute by lone prompts, and how much more they did.
    """
    rows = among[(among.num_tokens > largest_graph) & (among.decodes > 0)]
    rows = rows[rows.decodes_behind > 0]
    waited_ms = rows.late_ms + rows.handed_behind_ms
    rows = rows[waited_ms > WAITED * launches.whole_of(rows.decodes)]
    computing = prompts.linear_ms(rows.num_tokens) + attention_ms(rows, decodes, prompts)
    more = on_gpu_ms(rows, decodes, launches) - computing
    rows = rows.assign(computing=computing, more=more)
    return rows[computing > rows.before_ms + rows.handed_ms]
