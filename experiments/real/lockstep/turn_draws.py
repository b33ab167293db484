"""Requests for the comparisons whose prompts contain the answers to earlier ones."""

from collections.abc import Sequence
from random import Random

from testbed.core.request import Request
from testbed.experiments.real.lockstep.comparison import ITERATION_PS

IDS = 10**7  # of each answer, beyond those of prompts
LATER_PS = 10**6 * ITERATION_PS  # all before has ended


def with_turns(random: Random, drawn: Sequence[Request], longest: int) -> list[Request]:
    """The same requests, of which some begin with the prompt of one before and the answer to that,
    which may not be complete yet; none is longer than `longest` tokens.
    """
    turns = list[Request]()
    for request in drawn:
        earlier = random.choice(turns[-20:]) if turns and random.random() < 0.6 else None
        turns.append(_turn(random, request, earlier, longest))
    return turns


def with_later_turns(random: Random, drawn: Sequence[Request], longest: int) -> list[Request]:
    """`with_turns` in three parts, of which each begins when all before has ended: prompts contain
    complete answers.
    """
    turns, size = list[Request](), -(-len(drawn) // 3)
    for part in range(3):
        known = list(turns)
        for request in drawn[part * size : (part + 1) * size]:
            earlier = random.choice(known) if known and random.random() < 0.7 else None
            later = request._replace(arrival_ps=request.arrival_ps + part * LATER_PS)
            turns.append(_turn(random, later, earlier, longest))
    return turns


def _turn(random: Random, request: Request, earlier: Request | None, longest: int) -> Request:
    """The request with a named answer, behind an earlier one if that leaves room."""
    named = request._replace(answer_id=(request.request_id + 1) * IDS)
    if earlier is None or earlier.prompt_ids is None or earlier.answer_id is None:
        return named
    first = earlier.answer_id + earlier.prompt_len
    history = (*earlier.prompt_ids, *range(first, first + earlier.output_len))
    num_new = random.randint(1, 8)
    if len(history) + num_new + request.output_len > longest:
        return named
    own = (random.randrange(10**6) for _ in range(num_new))
    return named._replace(prompt_len=len(history) + num_new, prompt_ids=(*history, *own))
