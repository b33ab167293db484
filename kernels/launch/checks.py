"""Checks of what device arrays hold. They copy to the host and wait for the GPU, hence only on request."""

from typing import Any

import numpy as np


def to_numpy(array: Any) -> np.ndarray:
    """A host copy of a torch, CuPy or NumPy array."""
    if hasattr(array, "cpu"):
        return array.cpu().numpy()
    return array.get() if hasattr(array, "get") else np.asarray(array)


def check_block_ids(block_tables: Any, context_lens: Any, block_size: int, num_blocks: int) -> None:
    """Refuses a table that is too narrow for a context or names a block outside 0..num_blocks - 1 within one."""
    tables, lens = to_numpy(block_tables), to_numpy(context_lens)
    if lens.size and lens.min() < 0:
        raise ValueError(f"context_lens: negative length {lens.min()}")
    used = -(-lens // block_size)
    if used.size and used.max() > tables.shape[1]:
        raise ValueError(f"block_tables: {tables.shape[1]} blocks wide, a context needs {used.max()}")
    owned = np.arange(tables.shape[1]) < used[:, None]
    wrong = owned & ((tables < 0) | (tables >= num_blocks))
    if wrong.any():
        seq, at = np.argwhere(wrong)[0]
        raise ValueError(f"block_tables[{seq}, {at}]: block id {tables[seq, at]} is not in 0..{num_blocks - 1}")


def check_extents(extents: Any, context_lens: Any, num_slots: int) -> None:
    """Refuses an extent outside the pool or shorter than its context."""
    spans, lens = to_numpy(extents), to_numpy(context_lens)
    for seq, ((first, capacity), length) in enumerate(zip(spans.tolist(), lens.tolist(), strict=True)):
        if first < 0 or first + capacity > num_slots or length > capacity:
            raise ValueError(
                f"extents[{seq}]: {capacity} slots from {first} cannot hold {length} tokens in {num_slots} slots"
            )


def check_slots(slot_mapping: Any, num_slots: int) -> None:
    """Refuses a slot past the cache; negative slots mean "skip this token"."""
    slots = to_numpy(slot_mapping)
    if slots.size and slots.max() >= num_slots:
        raise ValueError(f"slot_mapping: slot {slots.max()} is not below {num_slots}")


def check_pairs(pairs: Any, num_blocks: int) -> None:
    """Refuses copies whose blocks do not exist, or where one block is both a source and a target, or a target twice."""
    ids = to_numpy(pairs)
    if ids.size and (ids.min() < 0 or ids.max() >= num_blocks):
        raise ValueError(f"pairs: block ids must be in 0..{num_blocks - 1}, got {ids.min()}..{ids.max()}")
    sources, targets = set(ids[:, 0].tolist()), ids[:, 1].tolist()
    if len(set(targets)) < len(targets) or sources & set(targets):
        raise ValueError("pairs: a target block appears twice or is also a source")
