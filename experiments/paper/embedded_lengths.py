"""What a newcomer should think of a scorecard that was made with the embedded length models."""

from collections.abc import Collection, Iterator, Sequence

import pandas as pd

from experiments.paper.scorecard import KEY
from experiments.paper.studies.study import RowKey

# Inside with the lengths of the paper's artifact. The embedded model keeps means and quantiles, not every row.
EXPECTED: frozenset[RowKey] = frozenset(
    {
        ("fig2", "opt-13b sharegpt", "orca-max", "internal_fragmentation"),
        ("fig2", "opt-13b sharegpt", "orca-pow2", "token_states"),
        ("fig2", "opt-13b sharegpt", "orca-pow2", "external_fragmentation_and_others"),
        ("fig2", "opt-13b sharegpt", "orca-oracle", "reservation"),
    }
)
COMPARED = {"table1", "fig2", "fig13a", "fig13b"}  # run with both, so that a miss of theirs can be judged
PICKLE = "sharegpt_opt_text_completion_length.pkl"


def remarks(card: pd.DataFrame, files: Collection[str], figures: Sequence[str]) -> Iterator[str]:
    """Which misses come from the embedded lengths, and how to get the real ones; `files` were replayed instead."""
    missed = [tuple(row[key] for key in KEY) for row in card.to_dict("records") if row["verdict"] == "miss"]
    if "sharegpt" in files:
        if missed:
            yield "REPRODUCING.md says of every miss what is known about it."
        return
    yield "Lengths were drawn from the embedded models, which are close to the paper's but are not the same rows."
    expected = [key for key in missed if key in EXPECTED]
    if expected:
        yield f"Expected to miss with them, and inside with the paper's: {_named(expected)}."
    other = [key for key in missed if key not in EXPECTED and key[0] in COMPARED]
    if other:
        yield f"Not expected to miss, so something has changed: {_named(other)}."
    rest = [key for key in missed if key[0] not in COMPARED]
    if rest:
        yield f"Judge these by the paper's lengths alone, and by REPRODUCING.md: {_named(rest)}."
    yield (
        f"The paper's lengths are datasets/{PICKLE} of the repository sosp-ae-39/sosp-ae-astra on GitHub:\n"
        f"  python -m traces.artifact_lengths {PICKLE} sharegpt.csv\n"
        f"  testbed reproduce {' '.join(figures)} --lengths sharegpt.csv"
    )


def _named(keys: Sequence[tuple[str, ...]]) -> str:
    return "; ".join(" ".join(filter(None, (figure, system, quantity))) for figure, _, system, quantity in keys)
