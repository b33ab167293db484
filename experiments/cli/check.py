"""`testbed check`: a plug-in against the contract of its kind."""

from typing import Annotated, Any

from cyclopts import Parameter

from testbed.core.errors import InputError
from testbed.experiments.cli.parameters import AtLeastOne, WholeNumber


def check(
    plug_in: Annotated[str, Parameter(name="MODULE:CLASS", help="such as my_module:MyPolicy")],
    /,
    *parameters: Annotated[
        str, Parameter(name="NAME=VALUE", help="parameters of the class, without its pool")
    ],
    slots: Annotated[AtLeastOne | None, Parameter(help="slots of a single pool")] = None,
    max_len: Annotated[AtLeastOne | None, Parameter(help="the longest sequence in tokens")] = None,
    host_slots: Annotated[WholeNumber | None, Parameter(help="slots of the host pool")] = None,
    examples: Annotated[AtLeastOne, Parameter(help="random histories in each pool")] = 200,
) -> int:
    """Check a plug-in against the contract of its kind.

    A memory policy: every clause in pools of several sizes; prints the first violated clause and
    the shortest sequence of calls that violates it; so is an eviction order. A scheduler is
    simulated and every plan compared with its outcome; so is a preemption rule; a cost model
    computes costs in spans and one by one. Exit code 1 where a clause is violated.
    """
    from testbed.checks.checking import check
    from testbed.experiments.runs.error_lines import plug_in_line
    from testbed.experiments.runs.progress import Progress, spoken

    values = dict(parameter(text) for text in parameters)
    histories = Progress("histories")
    with spoken(lambda: f"checking {plug_in}{histories}"):
        broken = check(
            plug_in,
            num_slots=slots,
            max_len=max_len,
            host_slots=host_slots,
            num_examples=examples,
            told=histories.told,
            **values,
        )
    if broken is None:
        print(f"{plug_in} keeps the contract")
        return 0
    place = plug_in_line(broken)
    print(f"{plug_in} breaks the contract, {broken}{f' ({place})' if place else ''}")
    print(*(f"    {call}" for call in broken.calls), sep="\n")
    return 1


def parameter(text: str) -> tuple[str, Any]:
    """NAME=VALUE, with the value parsed as YAML."""
    import yaml

    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise InputError(key=text, problem="is not NAME=VALUE")
    return name, yaml.safe_load(value)
