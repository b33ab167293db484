"""Calls that must be refused, in one line that names the culprit."""

import pytest

from testbed.core.errors import InputError


def refuses(message, call, *arguments, error=InputError, **options):
    """The call raises an error of this kind and of one line, in which the message is found; that
    line.
    """
    with pytest.raises(error, match=message) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def check_refusal(words, call, *arguments, **options):
    """The call raises an InputError of one line that contains each of these words; that line."""
    with pytest.raises(InputError) as caught:
        call(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message
    check_words(words, message)
    return message


def check_words(words, message):
    """The message contains each of these words: what was given, what is wrong, what to do."""
    assert not isinstance(words, str), "give a tuple of words"
    missing = [word for word in words if word not in message]
    assert not missing, f"{missing} not in: {message}"
