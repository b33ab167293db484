"""The debug mode on the GPU: four policies with one fault each must be caught.

python -m kernels.engine.verify.planted
"""

import argparse
from functools import partial

import torch

from kernels.engine.architecture import Architecture
from kernels.engine.assemble import Options, assemble
from kernels.engine.clock import StepClock
from kernels.engine.shadow import SlotError
from kernels.engine.verify.planted_faults import DoubleOwner, ForgottenCopy, WritesShared, WrongSwapIn
from kernels.engine.weights import random_weights
from testbed.core.request import Request
from testbed.core.specs import ModelSpec
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec, host
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Swap

FAULTS: dict[type[Paged], int] = {ForgottenCopy: 2, DoubleOwner: 1, WritesShared: 2, WrongSwapIn: 1}
SHAPE = ModelSpec("tiny", 2, 128, 2, 2, 64, 256, 2, 500, 256, True)
LENGTHS = [(9, 20), (10, 21), (9, 22), (11, 20)]


def caught(policy: type[Paged], num_seqs: int, device: str, dtype: torch.dtype) -> str:
    """What the debug mode says of a policy; empty where it finds nothing."""
    pool = PoolSpec(88, 256, host(256))
    scheduler = MixedPrefill(policy(pool, block_size=4), Swap(), max_num_batched_tokens=64, max_num_seqs=16)
    arch = Architecture(SHAPE, "opt")
    options = Options(device, dtype, debug=True, clock=StepClock())
    engine = assemble(scheduler, pool, arch, random_weights(arch, 0, device, dtype), options)
    try:
        engine.serve([Request(i, i * 10**12, *lengths, num_seqs) for i, lengths in enumerate(LENGTHS)])
    except SlotError as error:
        return str(error)
    return ""


def main() -> None:
    """Print what is said of each fault, and of a policy without one."""
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    said = partial(caught, device="cuda", dtype=torch.float16)
    found = {policy.__name__: said(policy, num_seqs) for policy, num_seqs in FAULTS.items()}
    for name, message in found.items():
        print(f"{name}: {message or 'NOT CAUGHT'}")
    clean = said(Paged, 1) or said(Paged, 2)
    print(f"Paged: {clean or 'clean'}")
    raise SystemExit(bool(clean) or not all(found.values()))


if __name__ == "__main__":
    main()
