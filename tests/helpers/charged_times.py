"""Options of costs by keyword: those of software times, and all others."""

from dataclasses import fields

from testbed.cost.software import SoftwareTimes

TIMES = {field.name for field in fields(SoftwareTimes)}


def apart(values):
    """The others, and the software times."""
    own = {name: value for name, value in values.items() if name in TIMES}
    return {name: value for name, value in values.items() if name not in own}, SoftwareTimes(**own)
