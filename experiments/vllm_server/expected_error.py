"""The error of the memory of vLLM's servers, for a server's own case."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.core.shapes import read_model
from testbed.vllm.limits import Limits
from testbed.vllm.memory import terms
from testbed.vllm.profiled_peak import activation_gib
from testbed.vllm.server import Server

if TYPE_CHECKING:
    from testbed.experiments.vllm_server.answer import Fit

FOLDER = Path(__file__).parent / "start_ups"
MEASURED_GPU, MEASURED_COUNTS = "h100-80gb", (1, 2, 4)
MEASURED_MODEL = "llama-3.1-8b"
OF_13 = (1024, 8192)  # sequences and tokens of the 13 shapes
OF_SHAPES = (
    "GiB of activation either way (13 shapes on 1, 2 or 4 H100s; 1,024 sequences, 8,192 tokens)"
)


def unlogged_parts(server: Server) -> tuple[str, ...]:
    """The parts of a server's memory that none of the logged start-ups has, to which their error
    says nothing.
    """
    parts = {
        "states of layers": server.model.states is not None,
        "a drafter": server.speculative is not None,
        "LoRA adapters": bool(server.memory and server.memory.adapters),
        "pipeline stages": server.limits.num_stages > 1,
        "experts of several engines": server.limits.num_expert_ranks > 1,
    }
    return tuple(name for name, is_there in parts.items() if is_there)


def error_lines(fit: "Fit") -> list[str]:
    """The error of a server's own case, or that it was not measured and what was."""
    num_seqs, tokens = fit.max_num_seqs, fit.max_num_batched_tokens
    of_shapes = f"{fit.activation_rmse_gib:.2f} {OF_SHAPES}"
    case = f"{num_seqs:,} sequences and {tokens:,} tokens"
    if fit.gpu != MEASURED_GPU or fit.num_gpus not in MEASURED_COUNTS:
        return [f"  error on {fit.num_gpus} x {fit.gpu}: not measured; {of_shapes}"]
    if fit.unlogged:
        return [f"  error with {' and '.join(fit.unlogged)}: not measured; without, {of_shapes}"]
    if (num_seqs, tokens) == OF_13:
        return [f"  expected error: {of_shapes}"]
    measured = dict(_measured())
    if (logged := measured.get((num_seqs, tokens))) is not None:
        return [f"  expected error with {case}: {_than_computed(logged)}"]
    fewest, tokens = _nearest(measured, tokens)
    return [
        f"  error with {case}: not measured; {of_shapes},",
        f"    with {fewest:,} and {tokens:,} {_than_computed(measured[fewest, tokens])}",
    ]


def _than_computed(more_gib: float) -> str:
    """The logged activation beside the computed one, and what that makes of the pool."""
    more, pool = ("more", "smaller") if more_gib > 0 else ("less", "larger")
    return (
        f"a start-up logged {abs(more_gib):.2f} GiB {more} of activation than is computed here, "
        f"so its pool was {pool}"
    )


def _nearest(measured: dict[tuple[int, int], float], tokens: int) -> tuple[int, int]:
    """The start-up with the fewest sequences whose tokens are nearest."""
    fewest = min(seqs for seqs, _ in measured)
    return min(
        ((seqs, size) for seqs, size in measured if seqs == fewest),
        key=lambda case: abs(case[1] - tokens),
    )


def _measured() -> Iterator[tuple[tuple[int, int], float]]:
    """Sequences, tokens, and logged minus computed activation in GiB of the six start-ups."""
    by, model = terms(), read_model(MEASURED_MODEL)
    with (FOLDER / "measured.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            case = int(row["max_num_seqs"]), int(row["max_num_batched_tokens"])
            computed = activation_gib(model, Limits(*case), logits=by.logits, hidden=by.hidden)
            yield case, float(row["logged_activation_gib"]) - computed
