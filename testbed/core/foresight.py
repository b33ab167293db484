"""Who may know the future: only what declares it."""

from collections.abc import Mapping
from typing import ClassVar

from testbed.core.errors import OracleError as OracleError


class Foresight:
    """Base of policies, schedulers and preemption rules: each may declare that it reads true output lengths.

    The engine gives `output_len`, the lengths of the requests that it serves, to those alone that declare it. Nothing
    else that they are told or can reach says how long a request will be.
    """

    reads_output_len: ClassVar[bool] = False
    _output_len: Mapping[int, int] | None = None

    @property
    def output_len(self) -> Mapping[int, int]:
        """True output lengths in tokens by request id, known beforehand only to an oracle."""
        if self._output_len is None:
            name = type(self).__name__
            raise OracleError(f"{name} asked for true output lengths, but does not declare reads_output_len = True")
        return self._output_len

    def foresee(self, output_len: Mapping[int, int]) -> None:
        """The engine says how long the outputs will be."""
        if not self.reads_output_len:
            raise OracleError(f"{type(self).__name__} does not declare reads_output_len = True")
        self._output_len = output_len
