"""Whole iterations as the engine serves them: decodes alone, and prompts that visit decodes."""

from collections.abc import Iterable, Mapping, Sequence

from testbed.core.request import PS, Request
from testbed.cost.model import CostModel, Work
from testbed.kernels.engine.bench import Bench, Kind, Phase, Planning, undisturbed
from testbed.kernels.engine.gpu_engine import GpuEngine
from testbed.kernels.engine.records import Iteration
from testbed.kernels.measure.sweeps import ragged_lens
from testbed.memory.paged.paged import Paged

CONTEXT, LONGEST, STEPS, SETTLING = 480, 1984, 64, 4
VISITS = 9
SPARE_PS = PS // 500  # of an iteration: the host takes more than the kernels' profile says


def served_decodes(engine: GpuEngine, requests: list[Request]) -> list[Iteration]:
    """The iterations in which all sequences of the requests decode, after a warm-up."""
    with undisturbed():
        works = engine.serve(requests).iterations
    return decodes_of(sum(request.num_seqs for request in requests), works)


def decodes_of(num_seqs: int, iterations: Iterable[Iteration]) -> list[Iteration]:
    """Those in which so many sequences decode and nothing else runs, after a warm-up."""
    return [
        iteration
        for iteration in iterations
        if iteration.work.decode_seqs == num_seqs and not iteration.work.prefill
    ][SETTLING:]


def decodes_alone(
    bench: Bench, kind: Kind, planning: Planning, batches: Iterable[int], cost: CostModel
) -> dict[int, list[Iteration]]:
    """Iterations in which a batch of ragged lengths decodes, CONTEXT tokens on average, by its
    sequences; without the batches for which memory has no room.
    """
    phases, measured, first_id, at_ps = list[Phase](), list[int](), 0, 0
    for batch in sorted(batches):
        phase = decoding(batch, cost, first_id, at_ps)
        if not bench.has_room(kind, phase.requests, batch):
            print(f"no room for {batch} sequences, whose launch takes that of fewer", flush=True)
            break
        phases.append(phase)
        measured.append(batch)
        first_id, at_ps = first_id + batch, phase.end_ps
    iterations = bench.served(kind, planning, phases, measured[-1]) if measured else []
    return {batch: decodes_of(batch, iterations) for batch in measured}


def decoding(batch: int, cost: CostModel, first_id: int, at_ps: int) -> Phase:
    """Requests of ragged lengths that decode together, and a generous time for them."""
    lengths = ragged_lens(batch, CONTEXT - STEPS // 2, LONGEST)
    requests = [Request(first_id + i, at_ps, length, STEPS) for i, length in enumerate(lengths)]
    prompts_ps = cost.iteration(Work(prefill=tuple((length, 0) for length in lengths)))
    step_ps = cost.iteration(Work(batch, batch * CONTEXT, LONGEST))
    return Phase(requests, at_ps + 2 * prompts_ps + STEPS * (step_ps * 3 // 2 + SPARE_PS))


def prompts_with_decodes(
    bench: Bench, planning: Planning, lengths_of: Mapping[int, Sequence[int]], cost: CostModel
) -> dict[tuple[int, int], list[Iteration]]:
    """Iterations with one prompt and so many decodes, by decodes and the prompt's length; without
    the decodes for which memory has no room. lengths_of: the prompts' lengths by decodes.

    Prompts arrive so that iterations with a prompt take half of the time, which gives the load and
    the clock of a busy server.
    """
    phases, visited, first_id, at_ps = list[Phase](), list[int](), 0, 0
    for decodes, lengths in sorted(lengths_of.items()):
        phase = visits(decodes, lengths, cost, first_id, at_ps)
        phase = phase.within(bench.arch.spec.max_len)
        if not bench.has_room(Paged, phase.requests, decodes + 1):
            print(f"no room for {decodes} decodes, whose launch takes that of fewer", flush=True)
            break
        phases.append(phase)
        visited.append(decodes)
        first_id, at_ps = first_id + len(phase.requests), phase.end_ps
    iterations = bench.served(Paged, planning, phases, visited[-1] + 1) if visited else []
    return {
        (decodes, length): with_one_prompt(iterations, decodes, length)
        for decodes in visited
        for length in lengths_of[decodes]
    }


def with_one_prompt(iterations: Iterable[Iteration], decodes: int, length: int) -> list[Iteration]:
    """Those with so many decodes and one prompt of this length."""
    return [
        iteration
        for iteration in iterations
        if iteration.work.decode_seqs == decodes and iteration.work.prefill == ((length, 0),)
    ]


def visits(
    decodes: int, lengths: Sequence[int], cost: CostModel, first_id: int, at_ps: int
) -> Phase:
    """Requests that decode, and VISITS rounds of prompts with one output token each, which arrive
    one after another while the others decode.

    decodes: how many decode. lengths: of the prompts of a round, in tokens. cost: by which the gaps
    are long enough. first_id: of the requests. at_ps: when the phase begins.
    """
    together = Work(decodes, decodes * CONTEXT, CONTEXT)
    begun_ps = at_ps
    at_ps += 4 * cost.iteration(Work(prefill=((CONTEXT, 0),) * decodes))  # they run steadily
    visitors: list[Request] = []
    for length in [*lengths] * VISITS:
        visitors.append(Request(first_id + decodes + len(visitors), at_ps, length, 1))
        at_ps += 2 * cost.iteration(together._replace(prefill=((length, 0),))) + SPARE_PS
    steps = (at_ps - begun_ps) // cost.iteration(together) + 1
    state = [Request(first_id + i, begun_ps, CONTEXT, steps) for i in range(decodes)]
    return Phase([*state, *visitors], at_ps)
