"""The one exception that is the user's to mend."""


class InputError(ValueError):
    """Bad input: the message names the culprit and the way out, in one line."""
