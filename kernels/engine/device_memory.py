"""Memory of the GPU that nothing refers to any more."""

import gc

import torch


def free() -> None:
    """Give the GPU back what is unreferenced: an engine's parts reference each other, and GiBs of
    pools. Before anything else is allocated: a tensor in the place of a pool keeps all of it.
    """
    gc.collect()
    torch.cuda.empty_cache()
