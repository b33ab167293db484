"""Options that SGLang (0.5.23) refuses by its own checks of values and of what goes together
(arg_groups/validation_hook.py, kv_cache_hook.py, managers/schedule_policy.py).
"""

from collections.abc import Mapping

from pydantic import TypeAdapter, ValidationError

from testbed.core.errors import DoesNotStart, InputError
from testbed.memory.radix.strategies import CONFIG_KEY, STRATEGIES, strategy_named
from testbed.sglang.command import SERVE
from testbed.sglang.option_values import decimal, number, refusal

ORDER = "--schedule-policy"
EVICTION = "--radix-eviction-policy"
EVICTION_CONFIG = f"{EVICTION}-config"

RANKED = ("fcfs", "lof")  # the orders of the queue that go with priorities


def check_scheduling(values: Mapping[str, str], chunk: int, page_size: int) -> None:
    """Raise InputError for a value that SGLang does not read, and DoesNotStart for options that it
    refuses beside others. chunk: tokens of a chunk, page_size: of a page, as SGLang has them if no
    option says so.
    """
    _check_eviction(values)
    served = values.get("--served-model-name", "")
    if ":" in served and "://" not in served:
        raise _refused("--served-model-name", served, "a colon stands before a LoRA's name")
    number(values, "--prefill-max-requests")
    conservativeness = "--schedule-conservativeness"
    if not (decimal(values, conservativeness) or 0.0) >= 0:  # nan is refused too
        raise refusal(values, conservativeness, "must be at least 0")
    _check_queue(values)
    if chunk > 0 and chunk % page_size:
        problem = f"is no multiple of the page of {page_size} tokens"
        raise _refused("--chunked-prefill-size", chunk, problem)
    if "--enable-priority-scheduling" in values:
        _check_order(values)
    elif values.get("--retraction-policy") == "priority":
        problem = "it needs --enable-priority-scheduling"
        raise _refused("--retraction-policy", "priority", problem)


def eviction_config(values: Mapping[str, str]) -> dict[str, int]:
    """The parameters of the eviction policy. Raises InputError for what is no object of numbers."""
    if EVICTION_CONFIG not in values:
        return {}
    try:
        config = TypeAdapter(dict[str, int] | None)
        return config.validate_json(values[EVICTION_CONFIG], strict=True) or {}
    except ValidationError:
        remedy = '\'{"threshold": 4096, "next_prompt_estimate": 512}\', say'
        problem = "is no JSON object of numbers"
        raise refusal(values, EVICTION_CONFIG, problem, remedy) from None


def _check_eviction(values: Mapping[str, str]) -> None:
    """Parameters that another policy takes are right alone."""
    config = eviction_config(values)
    problem = _eviction_problem(values.get(EVICTION, "lru"), config)
    if not problem:
        return
    if all(_eviction_problem(policy, config) for policy in STRATEGIES):
        raise refusal(values, EVICTION_CONFIG, problem)
    raise _refused(EVICTION_CONFIG, values.get(EVICTION_CONFIG), problem)


def _eviction_problem(policy: str, config: Mapping[str, int]) -> str:
    """The problem of a policy with these parameters, after the name of one; empty without any."""
    try:
        strategy_named(policy, config)
    except InputError as error:
        parameter = error.key.removeprefix(CONFIG_KEY).removeprefix(".")
        return f"{parameter}: {error.problem}" if parameter else error.problem
    return ""


def _check_queue(values: Mapping[str, str]) -> None:
    """The scheduler knows fewer orders of its queue than the parser."""
    order = values.get(ORDER)
    if order == "priority":
        remedy = "--enable-priority-scheduling with the order fcfs or lof"
        raise refusal(values, ORDER, "is an order that no scheduler of SGLang has", remedy)
    if order == "shortest-prefill-first" and "--disable-radix-cache" in values:
        raise _refused(ORDER, order, "it needs a prefix cache, which --disable-radix-cache takes")


def _check_order(values: Mapping[str, str]) -> None:
    order = values.get(ORDER, RANKED[0])
    if order not in RANKED:
        problem = f"--enable-priority-scheduling goes with {' and '.join(RANKED)}"
        raise _refused(ORDER, order, problem)


def _refused(name: str, value: object, problem: str) -> DoesNotStart:
    return DoesNotStart(key=f"{SERVE}: {name}", value=value, problem=problem, system="SGLang")
