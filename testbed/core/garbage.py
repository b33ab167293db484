"""The pace of Python's collector of cyclic garbage: a search takes longer the more is alive."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

OF_A_LOOP = 20_000  # new objects from one search to the next; Python's default is 700
OF_A_COMMAND = 200_000  # starting a command makes 110,000, almost all of which stay alive


@contextmanager
def collections_after(num_objects: int) -> Iterator[None]:
    """The collector searches when num_objects new objects are alive."""
    thresholds = gc.get_threshold()
    gc.set_threshold(num_objects, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


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
    looks at new objects a tenth as often. It took 2% of a run of one engine and 8% of one of four.
    """
    with left_alone(), collections_after(OF_A_LOOP):
        yield
