"""Run the contract against any policy and report what broke, with the shortest calls that break it."""

from testbed.contract.calls import Call, call_sequences
from testbed.contract.clauses import ClauseBroken
from testbed.contract.harness import Harness, PolicyFactory


def run_calls(factory: PolicyFactory, calls: list[Call]) -> None:
    """Carry out the calls twice; every clause, the same history both times."""
    first, second = Harness(factory), Harness(factory)
    if first.run(calls) != second.run(calls):
        broken = ClauseBroken(9, "the same calls gave different answers or tables")
        broken.calls = first.log
        raise broken


def check_policy(
    factory: PolicyFactory, max_len: int = 256, max_examples: int = 300, max_calls: int = 40, *, shrink: bool = True
) -> ClauseBroken | None:
    """The clause that policies made by `factory` break, with the calls that break it; None if all hold.

    The calls are the shortest such sequence where `shrink`, else the first one found, which is faster. Needs
    hypothesis. The search is derandomized: the same policy gets the same verdict every time.
    """
    from hypothesis import HealthCheck, Phase, given, settings

    @settings(
        max_examples=max_examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate, *([Phase.shrink] if shrink else [])],
    )
    @given(call_sequences(max_len, max_calls))
    def search(calls: list[Call]) -> None:
        run_calls(factory, calls)

    try:
        search()
    except ClauseBroken as broken:
        return broken
    return None
