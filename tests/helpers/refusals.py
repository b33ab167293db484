"""Calls that must be refused, in one line that names the culprit."""

import re

import pytest

from testbed.core.errors import DoesNotStart, InputError


def refuses(message, call, *arguments, error=InputError, **options):
    """The call raises an error of this kind and of one line, in which the message is found; that
    line.
    """
    with pytest.raises(error, match=message) as caught:
        call(*arguments, **options)
    return _line_of(caught.value)


def check_refusal(words, call, *arguments, **options):
    """The call raises an InputError of one line that contains each of these words; that line."""
    with pytest.raises(InputError) as caught:
        call(*arguments, **options)
    message = _line_of(caught.value)
    check_words(words, message)
    return message


def check_words(words, message):
    """The message contains each of these words: what was given, what is wrong, what to do."""
    assert not isinstance(words, str), "give a tuple of words"
    missing = [word for word in words if word not in message]
    assert not missing, f"{missing} not in: {message}"


def says_no_start(message):
    """True if a message says that the server does not start, for which the exit code is 1."""
    return bool(re.search("(vLLM|SGLang) does not start", message))


def _line_of(error):
    message = str(error)
    assert "\n" not in message
    assert isinstance(error, DoesNotStart) == says_no_start(message)
    return message
