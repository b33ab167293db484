"""The error of the memory of vLLM's servers, for a server's own case, and the pool beside it."""

import csv
from collections.abc import Collection, Iterator
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from testbed.core.errors import DoesNotFit
from testbed.core.shapes import read_model
from testbed.core.specs import GIB
from testbed.vllm.limits import Limits
from testbed.vllm.memory import Terms, terms
from testbed.vllm.pages import logged_tokens
from testbed.vllm.profiled_peak import activation_gib
from testbed.vllm.server import Server

if TYPE_CHECKING:
    from testbed.experiments.vllm_server.answer import Fit

FOLDER = Path(__file__).parent / "start_ups"
MEASURED_GPU, MEASURED_COUNTS = "h100-80gb", (1, 2, 4)
MEASURED_MODEL = "llama-3.1-8b"
OF_13 = (1024, 8192)  # sequences and tokens of the 13 shapes
LONGEST_OF_ALL = 2**31  # tokens, beyond any model's
OF_SHAPES = "13 shapes on 1, 2 or 4 H100s; 1,024 sequences, 8,192 tokens"


class Margin(NamedTuple):
    """A pool beside the known error of its memory, in GiB of each GPU.

    spare_gib: of the pool, beyond one request of the longest length. error_gib: by which the pool
    of the logged start-up that is nearest was smaller than computed here, or the error of the 13
    shapes if that is larger. fewer_tokens: of the pool, if it is smaller by the error, and
    longest_model_len what starts then; 0: nothing does.
    """

    spare_gib: float
    error_gib: float
    fewer_tokens: int
    longest_model_len: int

    @property
    def may_not_start(self) -> bool:
        return self.spare_gib < self.error_gib


def margin_of(server: Server, by: Terms) -> Margin | None:
    """The margin of a server that starts; None if its command gives the pool."""
    if server.pool.memory is None:
        return None
    pages, length, count = server.pages, server.model.max_len, server.pool.num_blocks
    error_gib = _smaller_gib(server.limits, by.rmse_gib)
    fewer = ceil(error_gib * GIB / pages.page_bytes)
    tokens, left = (
        logged_tokens(pages, blocks, length, server.release)
        for blocks in (count, max(0, count - fewer))
    )
    spare = server.pool.num_checked - pages.of_sequence(length)
    return Margin(
        spare_gib=spare * pages.page_bytes / GIB,
        error_gib=error_gib,
        fewer_tokens=tokens - left,
        longest_model_len=pages.longest(server.pool.num_checked - fewer, LONGEST_OF_ALL),
    )


def with_margin(server: Server, by: Terms | None = None) -> Server:
    """The server; raises DoesNotFit if the known error is more than its pool has to spare."""
    margin = margin_of(server, by or terms())
    if margin is not None and margin.may_not_start:
        raise DoesNotFit(
            key="the server",
            problem=(
                f"has {margin.spare_gib:.2f} GiB to spare, less than the error of its memory, "
                f"{margin.error_gib:.2f} GiB"
            ),
        )
    return server


def _smaller_gib(limits: Limits, rmse_gib: float) -> float:
    """GiB by which the pool may be smaller than computed here, as `error_lines` says it."""
    measured = dict(_measured())
    size = limits.max_num_seqs, limits.max_num_batched_tokens
    return max(rmse_gib, measured[_near(measured, size)])


def unlogged_parts(server: Server) -> tuple[str, ...]:
    """The parts of a server's memory that none of the logged start-ups has, to which their error
    says nothing.
    """
    parts = {
        "states of layers": server.model.states is not None,
        "a drafter": server.speculative is not None,
        "LoRA adapters": bool(server.pool.memory and server.pool.memory.adapters),
        "pipeline stages": server.limits.num_stages > 1,
        "experts of several engines": server.limits.num_expert_ranks > 1,
    }
    return tuple(name for name, is_there in parts.items() if is_there)


def error_lines(fit: "Fit") -> list[str]:
    """The error of a server's own case; if that was not measured, the errors that were."""
    size = fit.max_num_seqs, fit.max_num_batched_tokens
    of_shapes = f"{fit.activation_rmse_gib:.2f} GiB of activation either way ({OF_SHAPES})"
    measured = dict(_measured())
    if not (unlike := _unlike_measured(fit)):
        if size == OF_13:
            return [f"  expected error: {of_shapes}"]
        if size in measured:
            return [f"  expected error with {_named(size)}: {_than_computed(measured[size])}"]
    near = _near(measured, size)
    case = ", ".join([_named(size), *unlike])
    return [
        f"  error with {case}: not measured; of start-ups of other servers, which were logged:",
        f"    one H100 with {_named(near)}: {_than_computed(measured[near])}",
        f"    {of_shapes}",
    ]


def _unlike_measured(fit: "Fit") -> list[str]:
    """The parts of a server, beside its limits, that no measured start-up had."""
    if fit.gpu == MEASURED_GPU and fit.num_gpus in MEASURED_COUNTS:
        return [*fit.unlogged]
    return [*fit.unlogged, f"{fit.num_gpus} x {fit.gpu}"]


def _named(size: tuple[int, int]) -> str:
    num_seqs, tokens = size
    return f"{num_seqs:,} sequences, {tokens:,} tokens"


def _than_computed(more_gib: float) -> str:
    """The logged activation beside the computed one, and what that makes of the pool."""
    more, pool = ("more", "smaller") if more_gib > 0 else ("less", "larger")
    return (
        f"a start-up logged {abs(more_gib):.2f} GiB {more} of activation than is computed here, "
        f"so its pool was {pool}"
    )


def _near(measured: Collection[tuple[int, int]], size: tuple[int, int]) -> tuple[int, int]:
    """The start-up of this size; else that with the next fewer sequences, else the fewest, whose
    tokens are nearest.
    """
    if size in measured:
        return size
    num_seqs, tokens = size
    counts = {seqs for seqs, _ in measured}
    fewer = max((seqs for seqs in counts if seqs <= num_seqs), default=min(counts))
    of_count = (case for case in measured if case[0] == fewer)
    return min(of_count, key=lambda case: abs(case[1] - tokens))


def _measured() -> Iterator[tuple[tuple[int, int], float]]:
    """Sequences, tokens, and logged minus computed activation in GiB of the six start-ups."""
    by, model = terms(), read_model(MEASURED_MODEL)
    with (FOLDER / "measured.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            case = int(row["max_num_seqs"]), int(row["max_num_batched_tokens"])
            computed = activation_gib(model, Limits(*case), logits=by.logits, hidden=by.hidden)
            yield case, float(row["logged_activation_gib"]) - computed
