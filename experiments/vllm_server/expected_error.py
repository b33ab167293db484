"""The error of the memory of vLLM's servers, for a server's own case."""

import csv
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parent / "start_ups"
MEASURED_GPU, MEASURED_COUNTS = "h100-80gb", (1, 2, 4)
FITTED = (1024, 8192)  # sequences and tokens of the 13 shapes that the terms were fitted to
OF_SHAPES = "GiB of activation (13 shapes on 1, 2 or 4 H100s; 1,024 sequences, 8,192 tokens)"


def error_lines(
    gpu: str, num_gpus: int, max_num_seqs: int, max_num_batched_tokens: int, rmse_gib: float
) -> list[str]:
    """The error of a server's own case, or that it was not measured and what was.

    Args:
        gpu: our name.
        num_gpus: tensor parallelism.
        max_num_seqs: sequences that may run.
        max_num_batched_tokens: tokens of an iteration.
        rmse_gib: residual of the fitted terms over the shapes.
    """
    of_shapes = f"{rmse_gib:.2f} {OF_SHAPES}"
    case = f"{max_num_seqs:,} sequences and {max_num_batched_tokens:,} tokens"
    if gpu != MEASURED_GPU or num_gpus not in MEASURED_COUNTS:
        return [f"  error on {num_gpus} x {gpu}: not measured; {of_shapes}"]
    if (max_num_seqs, max_num_batched_tokens) == FITTED:
        return [f"  expected error: {of_shapes}"]
    measured = dict(_measured())
    if (logged := measured.get((max_num_seqs, max_num_batched_tokens))) is not None:
        return [f"  expected error with {case}: {logged:+.2f} GiB of activation (one start-up)"]
    fewest, tokens = _nearest(measured, max_num_batched_tokens)
    return [
        f"  error with {case}: not measured; {of_shapes},",
        f"    {measured[fewest, tokens]:+.2f} GiB with {fewest:,} and {tokens:,} (one start-up)",
    ]


def _nearest(measured: dict[tuple[int, int], float], tokens: int) -> tuple[int, int]:
    """The start-up with the fewest sequences whose tokens are nearest."""
    fewest = min(seqs for seqs, _ in measured)
    return min(
        ((seqs, size) for seqs, size in measured if seqs == fewest),
        key=lambda case: abs(case[1] - tokens),
    )


def _measured() -> Iterator[tuple[tuple[int, int], float]]:
    """Sequences, tokens, and logged minus predicted activation in GiB of the six start-ups."""
    for logged, predicted in zip(_rows("measured.csv"), _rows("predicted.csv"), strict=True):
        case = int(logged["max_num_seqs"]), int(logged["max_num_batched_tokens"])
        more = float(logged["logged_activation_gib"]) - float(predicted["predicted_activation_gib"])
        yield case, more


def _rows(name: str) -> list[dict[str, str]]:
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
