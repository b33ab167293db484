"""Scores eviction orders that a program writes, here from a list of ranks.

    python experiments/examples/score_written.py

A search would ask a language model or a mutation for the next rank; an order that raises an error,
or is no order, scores infinity.
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from testbed import arena

SUITE = "sprint"
TEXT = """
from testbed.memory.prefix_cache.eviction.ranked import Ranked

class Written(Ranked):
    def rank(self, node):
        return {rank}
"""
RANKS = ("-node.depth", "node.depth", "node.memo + 1")


def class_of(text: str, folder: Path) -> Any:
    """The class Written of a module with this text."""
    file = folder / f"written_{len(list(folder.iterdir()))}.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Written


def score_of(text: str, folder: Path) -> float:
    """The score of what the text defines; infinity if it fails."""
    try:
        return float(arena.score(class_of(text, folder), suite=SUITE))
    except Exception:  # whatever a written text may do
        return float("inf")


def best(ranks: Sequence[str]) -> tuple[float, str]:
    """The smallest score, and its rank."""
    with TemporaryDirectory() as folder:
        scores = [(score_of(TEXT.format(rank=rank), Path(folder)), rank) for rank in ranks]
    for score, rank in scores:
        print(f"{score:8.2f}  {rank}")
    return min(scores)


if __name__ == "__main__":
    best(RANKS)
