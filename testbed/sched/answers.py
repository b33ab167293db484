"""Checks of what plug-ins answer: a wrong answer is a PlugInError that names the plug-in."""

from testbed.core.errors import PlugInError
from testbed.core.slots import Answer, Grant, Refusal
from testbed.memory.policy import MemoryPolicy


def one_answer(policy: MemoryPolicy, answer: object) -> Answer:
    if not isinstance(answer, (Grant, Refusal)):
        raise wrong_answer(policy, answer, "it gives a Grant or a Refusal")
    return answer


def whole(plug_in: object, name: str, answer: object) -> int:
    """The answer, if it is an int of Python's own: an object of another class would hear what it is compared with."""
    if type(answer) is not int:
        raise wrong_answer(plug_in, answer, f"{name} is a whole number, of the type int itself")
    return answer


def wrong_answer(plug_in: object, answer: object, expected: str) -> PlugInError:
    return PlugInError(f"{type(plug_in).__name__} answered {answer!r}; {expected}")
