"""Oracles: plug-ins that read true output lengths, which no real server knows, to compare with.

An oracle takes them as a constructor argument of the name `lengths`: a mapping from request id to
output length in tokens, which the engine fills as requests arrive. The builder passes them
(`testbed/run/served_parts.py`); no other object receives or can reach them.
"""

from collections.abc import Mapping
from typing import TypeAlias

OutputLengths: TypeAlias = Mapping[int, int]
LENGTHS = "lengths"
