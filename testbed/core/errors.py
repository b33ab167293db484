"""The exceptions: what the user can mend, and what the author of a plug-in can."""


class InputError(ValueError):
    """Bad input: the message names the culprit and the way out, in one line."""


class PlugInError(RuntimeError):
    """A policy, scheduler, preemption rule or cost model broke its contract; the message names it and what it did."""


class OracleError(RuntimeError):
    """Somebody who does not declare `reads_output_len` asked for a true output length."""


class UnsupportedError(TypeError):
    """The policy does not declare the trait that this call needs."""
