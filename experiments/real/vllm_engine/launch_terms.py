"""The launch of an iteration with prompts, as a sum of what the host does in it.

It plans and prepares each request, and launches a graph for each part between two layers of
attention; beyond the largest graph it launches the kernels of all layers one by one, which adds a
time that does not depend on the requests; and for a number of tokens that it has not launched yet,
cuBLAS looks a kernel up for each of a layer's four matrix products (0.3 ms each, torch alone).
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


class PromptLaunches(NamedTuple):
    """Milliseconds by requests, by the most tokens; unseen: of a number of tokens beyond the graphs
    that was not launched before; 0 if no launch shows them.
    """

    curves: dict[int, Curve]
    unseen: float = 0.0


OfPrompts = Callable[[pd.DataFrame, int], PromptLaunches]


class LaunchTerms(NamedTuple):
    """Milliseconds: of each launch, of one beyond the graphs, of each request, of each of the first
    FEW, and of a number of tokens beyond the graphs that was not launched before.
    """

    fixed: float
    beyond_graphs: float
    per_request: float
    per_early_request: float
    unseen: float

    def ms(self, num_seqs: int, *, is_beyond: bool) -> float:
        """The whole launch of a number of tokens that was launched before."""
        early = min(num_seqs, FEW) * self.per_early_request
        return self.fixed + is_beyond * self.beyond_graphs + num_seqs * self.per_request + early


def fit_terms(rows: pd.DataFrame, largest_graph: int) -> LaunchTerms:
    """By the launches that were seen, each over the slowness of its host then."""
    seen = rows[rows.is_seen]
    mean_speed_ms = (seen.launch / seen.slowness).to_numpy(float)
    return LaunchTerms(*map(float, least_absolute(_terms(seen, largest_graph), mean_speed_ms)))


def _terms(rows: pd.DataFrame, largest_graph: int) -> Floats:
    num_seqs = rows.num_seqs.to_numpy(float)
    is_beyond = (rows.num_tokens > largest_graph).to_numpy(float)
    early = np.minimum(num_seqs, FEW)
    unseen = is_beyond * rows.is_unseen.to_numpy(float)
    return np.stack([np.ones(len(rows)), is_beyond, num_seqs, early, unseen], axis=1)


def prompts_by_terms(rows: pd.DataFrame, largest_graph: int) -> PromptLaunches:
    """Launches of iterations within the graphs and beyond; only of kinds that were logged.

    Each kind is at the level of its mean, because latencies are sums of all iterations, and a host
    that launches kernels one by one is slower meanwhile.
    """
    if not rows.is_seen.any():
        return PromptLaunches({})
    terms = fit_terms(rows, largest_graph)
    bounds = {False: largest_graph, True: int(rows.num_tokens.max())}
    curves = {
        bounds[bool(is_beyond)]: _curve(terms, of_kind[of_kind.is_seen], is_beyond=bool(is_beyond))
        for is_beyond, of_kind in rows.groupby(rows.num_tokens > largest_graph)
    }
    is_shown = rows.is_seen & rows.is_unseen & (rows.num_tokens > largest_graph)
    return PromptLaunches(curves, terms.unseen if is_shown.any() else 0.0)


def _curve(terms: LaunchTerms, seen: pd.DataFrame, *, is_beyond: bool) -> Curve:
    predicted = sum(terms.ms(num_seqs, is_beyond=is_beyond) for num_seqs in seen.num_seqs)
    predicted += is_beyond * terms.unseen * seen.is_unseen.sum()
    level = seen.launch.sum() / predicted if predicted else 1.0
    return {
        num_seqs: float(level * terms.ms(num_seqs, is_beyond=is_beyond)) for num_seqs in TABULATED
    }
