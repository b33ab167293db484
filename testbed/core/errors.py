"""Two exceptions: what the user can mend, and what the author of a plug-in can."""


class InputError(ValueError):
    """Bad input: the message names the culprit and the way out, in one line."""


class PlugInError(RuntimeError):
    """A policy, scheduler, preemption rule or cost model broke its contract; the message names it and what it did."""
