"""Policies with one changed answer."""

from testbed.memory.paged.paged import Paged


def changed(base, **changes):
    """Methods that answer change(policy, the base's answer, *arguments of the call)."""

    def method(call, change):
        def answer(self, *arguments):
            return change(self, getattr(base, call)(self, *arguments), *arguments)

        return answer

    return {call: method(call, change) for call, change in changes.items()}


def altered(name, base=Paged, **changes):
    """A policy of this name, some of whose answers are changed."""
    return type(name, (base,), changed(base, **changes))
