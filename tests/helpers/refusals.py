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
