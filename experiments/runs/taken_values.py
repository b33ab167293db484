"""The values of a system's own policy beside another policy, which may take only some of them."""

from collections.abc import Mapping, Sequence

from testbed.core.errors import InputError
from testbed.experiments.runs.choice_names import plug_in_class
from testbed.run.constructor_parameters import parameters_of
from testbed.run.override_words import key_of
from testbed.run.parts import locate

BLOCK_SIZE = "policy.block_size"
PREFIX = "policy."


def policy_takes(choices: Mapping[str, str], key: str) -> bool:
    """True if the chosen policy takes the value of a key `policy.NAME`; of a class that cannot be
    loaded, which building the run refuses, and of a policy that ships too.
    """
    target = plug_in_class("policy", choices.get("policy", ""))
    if target is None:
        return True
    try:
        parameters = parameters_of(locate(target.replace(":", "."), "policy"))
    except InputError:
        return True
    return parameters.has(key.removeprefix(PREFIX).partition(".")[0])


def not_taken(words: Sequence[str], choices: Mapping[str, str]) -> list[str]:
    """The words that set a parameter which the chosen policy does not have."""
    return [
        word
        for word in words
        if key_of(word).startswith(PREFIX) and not policy_takes(choices, key_of(word))
    ]
