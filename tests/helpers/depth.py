"""The number of examples of a property: a fifth of them by default, all under
`--hypothesis-profile=explore`.
"""

from hypothesis import settings


def examples(number: int) -> int:
    """The number for `max_examples`, by the profile: of 100 it has this share."""
    return number * settings.default.max_examples // 100
