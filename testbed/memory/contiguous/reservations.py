"""The number of slots that a sequence reserves at admission: Orca (Max), (Pow2), (Oracle) of
section 6.1.
"""

from collections.abc import Mapping

from testbed.core.errors import OracleError
from testbed.core.sequence import Sequence
from testbed.core.units import PositiveTokens
from testbed.memory.contiguous.contiguous import Contiguous
from testbed.memory.policy import PoolSpec


class ContiguousMax(Contiguous):
    """Orca (Max): always the model's longest sequence."""

    def reservation(self, seq: Sequence) -> int:
        return self.max_len

    def reservation_for(self, prompt_len: int, output_len: int) -> int:
        return self.max_len


class OracleReservation(Contiguous):
    """A reservation by the true output length, which no real server knows.

    lengths: true output lengths in tokens by request id. None: an oracle that may be asked for
    `max_seq_len`, and admits nothing.
    """

    def __init__(
        self,
        pool: PoolSpec,
        block_size: PositiveTokens = 16,
        *,
        lengths: Mapping[int, int] | None = None,
    ) -> None:
        super().__init__(pool, block_size)
        self.lengths = lengths

    def reservation(self, seq: Sequence) -> int:
        if self.lengths is None:
            raise OracleError(
                f"{type(self).__name__}: was built without true output lengths (give lengths=, and "
                "the same mapping to simulate)"
            )
        return self.reservation_for(seq.prompt_len, self.lengths[seq.request_id])


class ContiguousPow2(OracleReservation):
    """Orca (Pow2): the prompt and the next power of two of the output (section 6.1: for 25 it
    reserves 32).
    """

    def reservation_for(self, prompt_len: int, output_len: int) -> int:
        return min(prompt_len + (1 << (output_len - 1).bit_length()), self.max_len)


class ContiguousOracle(OracleReservation):
    """Orca (Oracle): the prompt and the true output length."""

    def reservation_for(self, prompt_len: int, output_len: int) -> int:
        return min(prompt_len + output_len, self.max_len)
