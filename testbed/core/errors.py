"""The exceptions: errors in the user's input, and errors in a plug-in's code."""


class InputError(ValueError):
    """Bad input: the one-line message names the input, what is wrong and what to do."""


def check_least(least: int, **values: int) -> None:
    """Raise InputError for the first of these values, by name, that is below the least one."""
    for name, value in values.items():
        if value < least:
            raise InputError(f"{name}={value}: must be at least {least}")


class PlugInError(RuntimeError):
    """A policy, scheduler, preemption rule or cost model broke its contract; the message names it
    and its action.
    """


class OracleError(RuntimeError):
    """An oracle was built without the knowledge of the future that it needs."""


class UnsupportedError(TypeError):
    """The policy does not declare the trait that this call needs."""
