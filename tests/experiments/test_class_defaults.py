"""The stored class defaults are those of Transformers, if the pinned release is installed."""

import pytest
from transformers_defaults import RELEASE, table

from testbed.core.hf_fields import class_defaults, class_names

transformers = pytest.importorskip("transformers")


@pytest.mark.skipif(transformers.__version__ != RELEASE, reason=f"transformers is not {RELEASE}")
def test_the_stored_defaults_are_those_of_the_classes():
    assert class_defaults() == table(class_names())
