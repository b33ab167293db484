"""Times of the GPU of a vLLM in iterations with prompts that fit into its graphs.

Their matrix products are those of as many decodes, padded alike. But only the last token of a
prompt has a row of output, which decodes have for each token; and the kernels of some sizes are
slower than those of larger ones, so that the time is no smooth curve. The time of a size
is the one of prompts among decodes if a log has any.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from testbed.experiments.real.vllm_engine.decode_fit import DecodeFit
from testbed.experiments.real.vllm_engine.launch_fit import OVER, LaunchFit
from testbed.experiments.real.vllm_engine.prompt_fit import PromptFit
from testbed.experiments.real.vllm_engine.smooth import Floats

FEWEST = 3  # iterations of a size that its time rests on
QUARTILE = 0.25  # results may be read late, never early
MOST_ROWS = 64  # tokens without a row of output from which on these show in the time


class WithinGraphs(NamedTuple):
    """Milliseconds by the size of the graph, without attention, and what each decode beside the
    prompts adds; empty if no iteration of prompts among decodes was seen to wait for the GPU.
    """

    times: dict[int, float]
    per_decode: float


NOT_SEEN = WithinGraphs({}, 0.0)


def fit_within_graphs(
    among: pd.DataFrame,
    decodes: DecodeFit,
    launches: LaunchFit,
    prompts: PromptFit,
    sizes: Sequence[int],
) -> WithinGraphs:
    """Fitted to the results that were waited for.

    The time of a size that was not seen is that of as many decodes less their rows of output, and
    no size takes longer than as many decodes. Each decode adds a row.
    """
    seen = _seen(among, decodes, launches, prompts, sizes)
    if seen.empty:
        return NOT_SEEN
    of_decodes = dict(zip(sizes, _of_decodes(sizes, decodes, prompts), strict=True))
    row_ms = _row_ms(seen, of_decodes)
    times = {size: ms - row_ms * size for size, ms in of_decodes.items()}
    of_size = (seen.computing - row_ms * seen.decodes).groupby(seen.padded)
    measured = of_size.quantile(QUARTILE)[of_size.size() >= FEWEST]
    times |= dict(zip(map(int, measured.index), map(float, measured), strict=True))
    longest = {size: ms for size, ms in of_decodes.items() if size <= decodes.num_seqs[-1]}
    least = times[sizes[0]]
    bounded = {size: min(max(ms, least), longest.get(size, ms)) for size, ms in times.items()}
    return WithinGraphs(bounded, row_ms)


def as_decodes(*fits: object) -> WithinGraphs:
    """Nothing: the time is that of as many decodes."""
    return NOT_SEEN


def _seen(
    among: pd.DataFrame,
    decodes: DecodeFit,
    launches: LaunchFit,
    prompts: PromptFit,
    sizes: Sequence[int],
) -> pd.DataFrame:
    """The iterations whose results the host waited for, with the size of their graph, and their
    computing without attention: from when the GPU was free and had the first of them.
    """
    rows = among[(among.num_tokens <= max(sizes, default=0)) & (among.decodes_behind > 0)]
    waited_ms = rows.late_ms + rows.handed_behind_ms
    rows = rows[waited_ms > OVER * launches.whole_of(rows.decodes)]
    computing = on_gpu_ms(rows, decodes, launches) - attention_ms(rows, decodes, prompts)
    padded = np.array(sizes)[np.searchsorted(sizes, rows.num_tokens)]
    return rows.assign(padded=padded, computing=computing)


def on_gpu_ms(rows: pd.DataFrame, decodes: DecodeFit, launches: LaunchFit) -> "pd.Series[float]":
    """From the begin of iterations on the GPU, which is free and has the first of a launch, to
    their results.
    """
    free_ms = decodes.each_ms(rows.decodes_before, rows.context_before)
    begun_ms = np.maximum(free_ms, rows.handed_ms + launches.first_of(rows.num_seqs))
    return rows.handed_ms + rows.before_ms + rows.handed_behind_ms + rows.late_ms - begun_ms


def attention_ms(rows: pd.DataFrame, decodes: DecodeFit, prompts: PromptFit) -> "pd.Series[float]":
    """The attention of iterations: that of their decodes and that of their prompts."""
    return decodes.reading_ms(rows) + prompts.attention_ms(rows.prompt_pairs)


def _of_decodes(sizes: Sequence[int], decodes: DecodeFit, prompts: PromptFit) -> Floats:
    """The times of batches of as many decodes; beyond the largest batch a line to prompts beyond
    the graphs.
    """
    beyond = max(2 * sizes[-1], decodes.num_seqs[-1] + 1)
    times = [*decodes.at_zero, prompts.linear_ms(beyond)]
    found: Floats = np.interp(sizes, [*decodes.num_seqs, beyond], times)
    return found


def _row_ms(seen: pd.DataFrame, of_decodes: dict[int, float]) -> float:
    """Milliseconds of a row of output."""
    rows = seen[seen.padded - seen.num_seqs >= MOST_ROWS]
    if rows.empty:
        return 0.0
    less = rows.padded.map(of_decodes) - rows.computing
    return max(0.0, float((less / (rows.padded - rows.num_seqs)).median()))
