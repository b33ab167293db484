"""Options with which SGLang (0.5.23) does not start: its parser's choices, and its own checks of
what goes together (arg_groups/validation_hook.py, kv_cache_hook.py).
"""

from collections.abc import Mapping

from pydantic import TypeAdapter, ValidationError

from testbed.core.errors import DoesNotStart, InputError
from testbed.memory.radix.strategies import strategy_named
from testbed.sglang.command import SERVE
from testbed.sglang.option_values import decimal, number, refusal

EVICTION = "--radix-eviction-policy"
EVICTION_CONFIG = f"{EVICTION}-config"

CHOICES: Mapping[str, tuple[str, ...]] = {
    EVICTION: ("lru", "lfu", "slru", "priority", "tlru"),
    "--retraction-policy": ("length", "priority"),
    "--schedule-policy": (
        "lpm",
        "random",
        "fcfs",
        "dfs-weight",
        "lof",
        "priority",
        "routing-key",
        "hrrn",
        "shortest-prefill-first",
    ),
}
RANKED = ("fcfs", "lof")  # the orders of the queue that go with priorities


def check_scheduling(values: Mapping[str, str], chunk: int, page_size: int) -> None:
    """Raise DoesNotStart for options that SGLang refuses. chunk: tokens of a chunk, page_size: of a
    page, as SGLang has them if no option says so.
    """
    for name, choices in CHOICES.items():
        _check_choice(values, name, choices)
    _check_eviction(values)
    served = values.get("--served-model-name", "")
    if ":" in served and "://" not in served:
        raise _refused("--served-model-name", served, "a colon stands before a LoRA's name")
    number(values, "--prefill-max-requests")
    conservativeness = "--schedule-conservativeness"
    if (decimal(values, conservativeness) or 0.0) < 0:
        raise _refused(conservativeness, values[conservativeness], "is below 0")
    if chunk > 0 and chunk % page_size:
        problem = f"is no multiple of the page of {page_size} tokens"
        raise _refused("--chunked-prefill-size", chunk, problem)
    if "--enable-priority-scheduling" in values:
        _check_choice(values, "--schedule-policy", RANKED, " with --enable-priority-scheduling")
    elif values.get("--retraction-policy") == "priority":
        problem = "it needs --enable-priority-scheduling"
        raise _refused("--retraction-policy", "priority", problem)


def eviction_config(values: Mapping[str, str]) -> dict[str, int]:
    """The parameters of the eviction policy. Raises InputError for what is no object of numbers."""
    if EVICTION_CONFIG not in values:
        return {}
    try:
        return TypeAdapter(dict[str, int]).validate_json(values[EVICTION_CONFIG], strict=True)
    except ValidationError:
        remedy = '\'{"threshold": 4096, "next_prompt_estimate": 512}\', say'
        problem = "is no JSON object of numbers"
        raise refusal(values, EVICTION_CONFIG, problem, remedy) from None


def _check_eviction(values: Mapping[str, str]) -> None:
    config = eviction_config(values)
    try:
        strategy_named(values.get(EVICTION, "lru"), config)
    except InputError as error:
        raise _refused(EVICTION_CONFIG, values.get(EVICTION_CONFIG), error.problem) from error


def _check_choice(
    values: Mapping[str, str], name: str, choices: tuple[str, ...], when: str = ""
) -> None:
    value = values.get(name)
    if value is not None and value not in choices:
        raise _refused(name, value, f"is none of {', '.join(choices)}{when}")


def _refused(name: str, value: object, problem: str) -> DoesNotStart:
    return DoesNotStart(
        key=f"{SERVE}: {name}", value=value, problem=f"SGLang does not start: {problem}"
    )
