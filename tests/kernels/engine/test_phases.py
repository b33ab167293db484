"""Measurements come in phases: the next one begins when the one before is over, at any speed."""

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("cupy", reason="CuPy is not installed")

import tiny_models as tiny

from testbed.core.request import Request
from testbed.kernels.engine.loaded_model import Bench, ahead, in_turn
from testbed.kernels.engine.phases import Phase
from testbed.kernels.engine.served_run import Options
from testbed.memory.paged.paged import Paged


def served(phases, planning=in_turn, iteration_s=1e-3, num_seqs=8):
    """(sequences that decode, new prompt tokens) of the iterations of each phase."""
    arch = tiny.architecture("llama")
    clock = tiny.StepClock(iteration_s)
    bench = Bench(arch, tiny.weights(arch), Options(clock=clock))
    return [
        [(one.work.decode_seqs, [new for new, _ in one.work.prefill]) for one in iterations]
        for iterations in bench.served(Paged, planning, phases, num_seqs)
    ]


def request(request_id, prompt_len, output_len=1):
    return Request(request_id, arrival_ps=0, prompt_len=prompt_len, output_len=output_len)


def test_a_phase_begins_when_all_requests_of_the_one_before_have_ended():
    first, second = served(
        [
            Phase([request(0, 9, output_len=5), request(1, 7, output_len=3)]),
            Phase([request(2, 6, output_len=2)]),
        ]
    )
    assert first == [(0, [9, 7]), (2, []), (2, []), (1, []), (1, [])]
    assert second == [(0, [6]), (1, [])]


@pytest.mark.parametrize("iteration_s", [1e-6, 1e-3, 10.0])
def test_visitors_come_one_by_one_however_long_an_iteration_takes(iteration_s):
    visitors = [request(2, 20), request(3, 5), request(4, 8)]
    residents = [request(0, 9, output_len=50), request(1, 9, output_len=50)]
    phases = [Phase(residents, visitors), Phase([request(5, 4, output_len=2)])]
    visited, after = served(phases, iteration_s=iteration_s)
    assert visited == [
        (0, [9, 9, 20]),
        (2, []),  # as long again passes
        (2, [5]),
        (2, []),
        (2, [8]),
        (2, []),  # the residents' last
    ]
    assert after == [(0, [4]), (1, [])]


def test_plans_made_ahead_leave_visitors_alone_too():
    visitors = [request(number, length) for number, length in enumerate((20, 5, 8, 5, 8), 1)]
    (visited,) = served([Phase([request(0, 9, output_len=80)], visitors)], ahead)
    with_prompts = [work for work in visited if work[1]]
    assert with_prompts[1:] == [(1, [5]), (1, [8]), (1, [5]), (1, [8])]


def test_visits_end_when_a_resident_has():
    visitors = [request(number, 5) for number in range(2, 9)]
    residents = [request(0, 9, output_len=50), request(1, 9, output_len=6)]
    visited, after = served([Phase(residents, visitors), Phase([request(20, 4)])])
    assert max(len(prompts) for decodes, prompts in visited if decodes) == 1
    assert 3 <= sum(len(prompts) for _, prompts in visited) < 9
    assert all(decodes == 2 for decodes, _ in visited[1:-1])
    assert after == [(0, [4])]


def test_what_could_never_run_is_an_error():
    with pytest.raises(ValueError, match="could never run"):
        served([Phase([request(0, 500, output_len=5)])])


def test_outputs_end_at_the_longest_sequence():
    phase = Phase([request(0, 20, output_len=200)], [request(1, 9)])
    assert phase.within(128) == ([request(0, 20, output_len=108)], [request(1, 9)])
