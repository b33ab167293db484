"""The launch of an iteration with prompts, as a sum of what the host does in it.

It plans and prepares each request, and launches a graph for each part between two layers of
attention; beyond the largest graph it launches the kernels of all layers one by one, which adds a
time that does not depend on the requests.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd

from testbed.experiments.real.vllm_engine.smooth import Floats, least_absolute

FEW = 32  # requests up to which one more may cost more than beyond
MOST = 1024  # requests up to which launches are tabulated
TABULATED = (1, 2, 4, 8, 16, FEW, 48, 64, 96, 128, 192, 256, 384, 512, 768, MOST)
Curve = dict[int, float]
Curves = Callable[[pd.DataFrame, int], dict[int, Curve]]


class LaunchTerms(NamedTuple):
    """Milliseconds: of each launch, of one beyond the graphs, of each request, and of each of the
    first FEW.
    """

    fixed: float
    beyond_graphs: float
    per_request: float
    per_early_request: float

    def ms(self, num_seqs: int, *, is_beyond: bool) -> float:
        """The whole launch."""
        early = min(num_seqs, FEW) * self.per_early_request
        return self.fixed + is_beyond * self.beyond_graphs + num_seqs * self.per_request + early


def fit_terms(rows: pd.DataFrame, largest_graph: int) -> LaunchTerms:
    """By the launches that were seen, each over the slowness of its host then; at the level of
    their mean, because latencies are sums of all iterations.
    """
    seen = rows[rows.is_seen]
    slowness = seen.slowness.to_numpy(float)
    launch = seen.launch.to_numpy(float)
    terms = _terms(seen, largest_graph)
    times = least_absolute(terms, launch / slowness)
    level = launch.sum() / (slowness * (terms @ times)).sum()
    return LaunchTerms(*map(float, level * times))


def _terms(rows: pd.DataFrame, largest_graph: int) -> Floats:
    num_seqs = rows.num_seqs.to_numpy(float)
    is_beyond = (rows.num_tokens > largest_graph).to_numpy(float)
    return np.stack([np.ones(len(rows)), is_beyond, num_seqs, np.minimum(num_seqs, FEW)], axis=1)


def curves_by_terms(rows: pd.DataFrame, largest_graph: int) -> dict[int, Curve]:
    """Milliseconds by requests, of iterations within the graphs and beyond, by the most tokens;
    only of kinds that were logged.
    """
    if not rows.is_seen.any():
        return {}
    terms = fit_terms(rows, largest_graph)
    bounds = {False: largest_graph, True: int(rows.num_tokens.max())}
    return {
        bounds[bool(is_beyond)]: {
            num_seqs: terms.ms(num_seqs, is_beyond=bool(is_beyond)) for num_seqs in TABULATED
        }
        for is_beyond in np.unique(rows.num_tokens > largest_graph)
    }
