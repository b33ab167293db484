"""Python's collector of cyclic garbage beside a loop that must not wait for it."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def left_alone() -> Iterator[None]:
    """Collections look at objects only that are made meanwhile. A search of all that a process with
    a GPU has imported takes 0.1 to 0.2 s, in the middle of an iteration.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def rare_collections() -> Iterator[None]:
    """The collector leaves alone what was there before (libraries, configuration and workload), and
    looks at new objects a tenth as often.

    It took 2% of a run of one engine and 8% of one of four: a search takes longer the more is
    alive.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(10 * thresholds[0], *thresholds[1:])
    try:
        with left_alone():
            yield
    finally:
        gc.set_threshold(*thresholds)
