"""A small run of every kernel: `compute-sanitizer --tool memcheck python -m kernels.verify.sanitize`."""

import numpy as np
import torch

from kernels.launch.decode_plan import DecodePlan
from kernels.verify.random_batches import Shape
from kernels.verify.verify_attention import TOLERANCE, Case, check_decode, check_prefill
from kernels.verify.verify_moves import MOVE_CHECKS

CASES = (
    Case(Shape(3, 3, 64, 16, torch.float16), 1, DecodePlan(4, 3, 64), 200),
    Case(Shape(4, 1, 128, 1, torch.bfloat16), 2, DecodePlan(4, 3, 64), 150),
    Case(Shape(12, 1, 80, 8, torch.float16), 3, DecodePlan(2, 4, 128), 300),
    Case(Shape(2, 2, 96, 32, torch.bfloat16), 4, DecodePlan(8, 1, 128), 300),
    Case(Shape(4, 2, 256, 3, torch.float16), 5, DecodePlan(4, 2, 64), 130),
    Case(Shape(8, 2, 128, 16, torch.float16), 6, DecodePlan(4, 3, 64), 300),
    Case(Shape(16, 1, 128, 8, torch.float16), 7, DecodePlan(8, 1, 128, wave=True), 900),
)


def main() -> None:
    """Checks a few tiny cases of every kernel and fails if one is wrong."""
    for case in CASES:
        for name, error in (check_decode(case) | check_prefill(case)).items():
            if error > TOLERANCE[case.shape.dtype]:
                raise SystemExit(f"{name}: error {error:.2e} on {case}")
    for name, check in MOVE_CHECKS.items():
        if not check(np.random.default_rng(0)):
            raise SystemExit(f"{name} is wrong")
    print("every kernel ran")


if __name__ == "__main__":
    main()
