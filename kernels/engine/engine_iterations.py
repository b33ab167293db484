"""Whole iterations as the engine serves them: decodes alone, and prompts that visit decodes."""

from collections.abc import Iterable, Mapping, Sequence

from testbed.core.errors import InputError
from testbed.core.request import Request
from testbed.cost.model import CostModel, Work
from testbed.kernels.engine.loaded_model import Bench, Kind, Planning
from testbed.kernels.engine.phases import Phase
from testbed.kernels.engine.records import Iteration
from testbed.kernels.measure.sweeps import ragged_lens
from testbed.memory.paged.paged import Paged

CONTEXT, LONGEST, STEPS, SETTLING = 480, 1984, 64, 4
VISITS = 9
WAITED_STEPS = 2  # decodes for which a visitor waits: one that runs, one planned behind it


def decodes_of(num_seqs: int, iterations: Iterable[Iteration]) -> list[Iteration]:
    """The iterations in which num_seqs sequences decode and nothing else runs, after a warm-up;
    InputError if there are none.
    """
    alone = [
        iteration
        for iteration in iterations
        if iteration.work.decode_seqs == num_seqs and not iteration.work.prefill
    ][SETTLING:]
    return _some(alone, f"{num_seqs} decodes alone")


def decodes_alone(
    bench: Bench, kind: Kind, planning: Planning, batches: Iterable[int]
) -> dict[int, list[Iteration]]:
    """Iterations in which a batch of ragged lengths decodes, CONTEXT tokens on average, by its
    sequences; without the batches for which memory has no room.
    """
    phases, measured, first_id = list[Phase](), list[int](), 0
    for batch in sorted(batches):
        phase = decoding(batch, first_id)
        if not bench.has_room(kind, [*phases, phase], batch):
            print(f"no room for {batch} sequences, whose launch takes that of fewer", flush=True)
            break
        phases.append(phase)
        measured.append(batch)
        first_id += batch
    served = bench.served(kind, planning, phases, measured[-1]) if measured else []
    by_batch = zip(measured, served, strict=True)
    return {batch: decodes_of(batch, iterations) for batch, iterations in by_batch}


def decoding(batch: int, first_id: int) -> Phase:
    """Requests of ragged lengths that decode together."""
    lengths = ragged_lens(batch, CONTEXT - STEPS // 2, LONGEST)
    return Phase([Request(first_id + i, 0, length, STEPS) for i, length in enumerate(lengths)])


def prompts_with_decodes(
    bench: Bench, planning: Planning, lengths_of: Mapping[int, Sequence[int]], cost: CostModel
) -> dict[tuple[int, int], list[Iteration]]:
    """Iterations with one prompt and some decodes, by decodes and the prompt's length; without
    the decodes for which memory has no room. lengths_of: the prompts' lengths by decodes; cost: see
    `visits`.
    """
    phases, visited, first_id = list[Phase](), list[int](), 0
    for decodes, lengths in sorted(lengths_of.items()):
        phase = visits(decodes, lengths, cost, first_id).within(bench.arch.spec.max_len)
        if not bench.has_room(Paged, [*phases, phase], decodes + 1):
            print(f"no room for {decodes} decodes, whose launch takes that of fewer", flush=True)
            break
        phases.append(phase)
        visited.append(decodes)
        first_id += len(phase.requests)
    served = bench.served(Paged, planning, phases, visited[-1] + 1) if visited else []
    return {
        (decodes, length): with_one_prompt(iterations, decodes, length)
        for decodes, iterations in zip(visited, served, strict=True)
        for length in lengths_of[decodes]
    }


def with_one_prompt(iterations: Iterable[Iteration], decodes: int, length: int) -> list[Iteration]:
    """The iterations with `decodes` decodes and one prompt of this length; InputError if there are
    none.
    """
    visited = [
        iteration
        for iteration in iterations
        if iteration.work.decode_seqs == decodes and iteration.work.prefill == ((length, 0),)
    ]
    return _some(visited, f"{decodes} decodes and a prompt of {length} tokens")


def _some(measured: list[Iteration], what: str) -> list[Iteration]:
    if not measured:
        raise InputError(
            key="the iterations",
            problem=f"no iteration with {what} was measured",
            remedy="the pool or the model's max_len is too small",
        )
    return measured


def visits(decodes: int, lengths: Sequence[int], cost: CostModel, first_id: int) -> Phase:
    """Requests that decode, and VISITS rounds of prompts with one output token each. The first
    visitor is one more: it is answered when all residents decode.

    decodes: how many decode. lengths: of the prompts of a round, in tokens. cost: by which the
    residents' outputs are long enough for the visitors' stays. first_id: of the requests.
    """
    together = Work(decodes, decodes * CONTEXT, CONTEXT)
    step_ps = cost.iteration(together)
    stays_ps = 2 * cost.iteration(Work(prefill=((CONTEXT, 0),) * (decodes + 1)))
    for length in [*lengths] * VISITS:
        alone_ps = cost.iteration(together._replace(prefill=((length, 0),)))
        stays_ps += 2 * (alone_ps + WAITED_STEPS * step_ps)
    residents = [Request(first_id + i, 0, CONTEXT, stays_ps // step_ps + 1) for i in range(decodes)]
    visitors = enumerate([CONTEXT, *[*lengths] * VISITS], first_id + decodes)
    return Phase(residents, [Request(number, 0, length, 1) for number, length in visitors])
