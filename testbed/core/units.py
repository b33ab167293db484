"""Types of configured values: the constraint and the unit stand at the field.

They are `typing.Annotated` with the markers of the package annotated_types, which pydantic checks;
a plug-in's constructor may use them, or markers of its own such as `Annotated[int, Gt(0)]`.
Numbers are finite.
"""

from typing import Annotated

from annotated_types import Ge, Gt, Le, Unit

PS = 10**12  # picoseconds in a second
# S; whole picoseconds in 64 bits end at 9.2 million, and requests that arrive late must be served.
LAST_S = 9_000_000
MAX_GIB = 1 << 20  # of any memory of a server
MOST = 1 << 62  # of tokens, sequences or requests: 64 bits hold it, and no length reaches it

Count = Annotated[int, Ge(0)]
PositiveCount = Annotated[int, Gt(0), Le(MOST)]
NumTokens = Annotated[int, Ge(0), Le(MOST), Unit("tokens")]
PositiveTokens = Annotated[int, Gt(0), Le(MOST), Unit("tokens")]
NonNegative = Annotated[float, Ge(0)]
Positive = Annotated[float, Gt(0)]
Share = Annotated[float, Ge(0), Le(1)]
PositiveShare = Annotated[float, Gt(0), Le(1)]
Seconds = Annotated[float, Ge(0), Le(LAST_S), Unit("s")]
PositiveSeconds = Annotated[float, Gt(0), Le(LAST_S), Unit("s")]
RequestsPerSecond = Annotated[float, Gt(0), Unit("requests/s")]
Gib = Annotated[float, Ge(0), Le(MAX_GIB), Unit("GiB")]
# The least value of a data sheet shows one that is given in another unit, such as GB/s.
MemoryBytes = Annotated[int, Ge(1 << 20), Unit("bytes")]
MemoryBandwidth = Annotated[float, Ge(1e9), Unit("bytes/s")]
LinkBandwidth = Annotated[float, Ge(1e6), Unit("bytes/s")]
TierBandwidth = Annotated[float, Ge(1e5), Unit("bytes/s")]
Flops = Annotated[float, Ge(1e9), Unit("FLOP/s")]
