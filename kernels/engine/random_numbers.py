"""Random numbers by key: many at once, each a function of its key alone."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # SplitMix64: Steele, Lea and Flood, OOPSLA 2014
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def uniforms(keys: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """A number from 0 to below 1 for each key; all keys have as many words, of up to 64 bits."""
    words = np.array(keys, np.uint64)
    state = np.zeros(len(words), np.uint64)
    for word in words.T:
        state = _mixed((state ^ word) + GOLDEN)
    return (state >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finalizer; sums and products modulo 2 ** 64."""
    x = (x ^ x >> np.uint64(30)) * FIRST
    x = (x ^ x >> np.uint64(27)) * SECOND
    return x ^ x >> np.uint64(31)
