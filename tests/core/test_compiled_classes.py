"""What compiled modules import as `abc.ABC` refuses what Python's own does; here of classes that
are not compiled.
"""

from abc import abstractmethod

from refusals import refuses

from testbed import compiled


def test_abstract_classes_and_unknown_arguments_are_refused(monkeypatch):
    def answer(self):
        return 4

    kind = type(
        "Kind", (compiled.ABC,), {"answer": abstractmethod(lambda self: 3), "other": answer}
    )
    whole = type("Whole", (kind,), {"answer": answer})
    made = type("Made", (whole,), {"__init__": lambda self, number: None})
    refuses("Can't instantiate abstract class Kind", kind, error=TypeError)
    refuses(r"Whole\(\) takes no arguments", whole, 3, error=TypeError)
    assert whole().answer() == made(3).answer() == 4
    late = type("Late", (whole,), {})
    compiled.settle(late, "other", "__call__")
    refuses("Can't instantiate abstract class Late.* other", late, error=TypeError)
    assert not callable(whole())
    compiled.settle(float, "real")  # no class of ours
    monkeypatch.setattr(compiled, "find_spec", lambda name: None)
    assert not compiled.is_compiled()
