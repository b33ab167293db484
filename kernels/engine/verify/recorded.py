"""Runs a scenario and keeps the logits that the engine saw, each beside the tokens that they follow."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from kernels.engine.architecture import Architecture
from kernels.engine.assemble import Options, assemble
from kernels.engine.clock import StepClock
from kernels.engine.records import Records
from kernels.engine.speaker import Said
from kernels.engine.verify.scenarios import MAX_LEN, Scenario
from kernels.engine.weights import Weights
from testbed.core.errors import PlugInError
from testbed.sched.beams import Replacement


@dataclass(slots=True)
class Recording:
    """rows: (tokens so far, logits of the next) of every choice; totals: each beam's log-probabilities."""

    rows: list[tuple[tuple[int, ...], Tensor]] = field(default_factory=list)
    totals: dict[int, list[float]] = field(default_factory=dict)
    prompts: dict[int, list[int]] = field(default_factory=dict)
    records: Records = field(default_factory=Records)
    num_copies: int = 0


def record(
    scenario: Scenario, arch: Architecture, weights: Weights, device: str, dtype: torch.dtype, graphs: int = 0
) -> Recording:
    """Serve the scenario's requests, in the debug mode or, with graphs, without.

    Raises where the scenario did not lead to what it is meant to.
    """
    pool = scenario.pool()
    short = replace(arch, spec=replace(arch.spec, max_len=min(arch.spec.max_len, MAX_LEN)))
    scheduler = scenario.scheduler(scenario.policy(pool))
    options = Options(device, dtype, debug=not graphs, clock=StepClock(0.1), graphs=graphs)
    engine = assemble(scheduler, pool, short, weights, options)
    found, requests = Recording(), scenario.requests(arch.spec.vocab_size)
    found.prompts = {r.request_id: engine.runner.streams.prompt(r.incoming) for r in requests}
    _watch(engine.runner.speaker, engine.runner.moves, found)
    found.records = engine.serve(requests)
    _check(scenario, found, scheduler.policy.counters())
    return found


def _watch(speaker: object, moves: object, found: Recording) -> None:
    speak, end, copy = speaker.speak, speaker.end, moves.copy  # type: ignore[attr-defined]

    def watched(logits: Tensor, said: list[Said], best: Tensor) -> dict[int, tuple[Replacement, ...]]:
        for group, index, row in said:
            tokens = speaker.streams.tokens[group.sequences[index].seq_id]  # type: ignore[attr-defined]
            found.rows.append((tuple(tokens), logits[row].clone()))
        return speak(logits, said, best)

    def ended(group: object) -> None:
        request = group.request  # type: ignore[attr-defined]
        if request.beam:
            totals = [speaker.total(request.request_id, i) for i in range(request.num_seqs)]  # type: ignore[attr-defined]
            found.totals[request.request_id] = totals
        end(group)

    def copied(copies: tuple[object, ...]) -> None:
        found.num_copies += len(copies)
        copy(copies)

    speaker.speak, speaker.end, moves.copy = watched, ended, copied  # type: ignore[attr-defined]


def _check(scenario: Scenario, found: Recording, counters: object) -> None:
    requests = found.records.requests
    counts = {
        "": 1,
        "swaps": sum(r.num_swaps for r in requests),
        "recomputes": sum(r.num_recomputes for r in requests),
        "hits": counters.get("hit_tokens", 0),  # type: ignore[attr-defined]
        "copies": found.num_copies,
    }
    if len(requests) != scenario.num_requests or found.records.rejections or not counts[scenario.happened]:
        raise PlugInError(f"{scenario.name}: {len(requests)} requests ended, {counts}")
