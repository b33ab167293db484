"""`testbed check`: a plug-in against the contract of its kind."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from testbed.core.errors import InputError
from testbed.experiments.cli import exit_codes
from testbed.experiments.cli.parameters import AsJson, AtLeastOne, WholeNumber

if TYPE_CHECKING:
    from testbed.experiments.cli.json_answers import CheckAnswer


PlugIn = Annotated[str, Parameter(name="MODULE:CLASS", help="such as my_module:MyPolicy")]
Value = Annotated[
    str, Parameter(name="NAME=VALUE", help="parameters of the class, without its pool")
]
Slots = Annotated[AtLeastOne, Parameter(help="slots of a single pool")]
Longest = Annotated[AtLeastOne, Parameter(help="the longest sequence in tokens")]
HostSlots = Annotated[WholeNumber, Parameter(help="slots of the host pool")]
Examples = Annotated[AtLeastOne, Parameter(help="random histories in each pool")]


@Parameter(name="*")
@dataclass(frozen=True)
class Pool:
    """The pool of a policy, in place of those of the contract."""

    slots: Slots | None = None
    max_len: Longest | None = None
    host_slots: HostSlots | None = None


POOLS = Pool()


def check(
    plug_in: PlugIn,
    /,
    *parameters: Value,
    pool: Pool = POOLS,
    examples: Examples = 200,
    json: AsJson = False,
) -> int:
    """Check a plug-in against the contract of its kind.

    A memory policy: every clause in pools of several sizes; prints the first violated clause and
    the shortest sequence of calls that violates it; so is an eviction order. A scheduler is
    simulated and every plan compared with its outcome; so is a preemption rule; a cost model
    computes costs in spans and one by one; a router serves small fleets whose engines fail; a
    hand-over rule is asked for random prompts. Exit code 1 if a clause is violated.
    """
    from testbed.checks.checking import check
    from testbed.experiments.cli.json_answers import check_answer
    from testbed.experiments.cli.output import print_json
    from testbed.experiments.runs.error_lines import plug_in_line
    from testbed.experiments.runs.progress import Progress, status_line

    values = dict(parameter(text) for text in parameters)
    histories = Progress("histories")
    with status_line(lambda: f"checking {plug_in}{histories}"):
        broken = check(
            plug_in,
            num_slots=pool.slots,
            max_len=pool.max_len,
            host_slots=pool.host_slots,
            num_examples=examples,
            progress=histories,
            **values,
        )
    answer = check_answer(plug_in, broken, "" if broken is None else plug_in_line(broken))
    if json:
        print_json(answer)
    else:
        print(*lines_of(answer), sep="\n")
    return exit_codes.ANSWERED if answer.keeps_contract else exit_codes.NO


def lines_of(answer: "CheckAnswer") -> list[str]:
    """The answer for the terminal."""
    if answer.keeps_contract:
        return [f"{answer.plug_in} keeps the contract"]
    place = f" ({answer.place})" if answer.place else ""
    first = f"{answer.plug_in} breaks the contract, {answer.problem}{place}"
    return [first, *(f"    {call}" for call in answer.calls)]


def parameter(text: str) -> tuple[str, Any]:
    """NAME=VALUE, with the value parsed as YAML."""
    import yaml

    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise InputError(key=text, problem="is not NAME=VALUE")
    return name, yaml.safe_load(value)
