"""The log of a server: one line for each request that has ended, with its lengths and times."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from testbed.core.errors import InputError
from testbed.core.request import PS


class RequestLog:
    """Writes a requests.jsonl, which `testbed validate` reads. Times are simulated seconds.

    A line is in the file when its request has ended. Prompts are not written, nor the number of
    sequences, which the format lacks. simulated: each line says that no server was measured.

    Attributes:
        failure: why the file lacks a request; None while it has them all. Nothing is written
            behind it.
        on_failure: called once, then.
    """

    def __init__(self, path: Path, *, simulated: bool = False) -> None:
        if not path.name.endswith(".jsonl"):
            raise InputError(
                key="--log", value=path, problem="must end in .jsonl", remedy="give FILE.jsonl"
            )
        try:
            self._file = path.open("xb", buffering=0)
        except OSError as error:
            raise InputError(
                key="--log", value=path, problem=error.strerror, remedy="give a new file"
            ) from error
        self._path = path
        self._mark = {"simulated": True} if simulated else {}
        self._num_bytes = 0
        self.failure: InputError | None = None
        self.on_failure: Callable[[], None] = lambda: None

    def write(
        self, prompt_len: int, output_len: int, queued_ps: int, first_ps: int, last_ps: int
    ) -> None:
        """Append a request: lengths in tokens, times in ps."""
        if self.failure is not None:
            return
        lengths = {"input_toks": prompt_len, "output_toks": output_len}
        times = {"queued_ts": queued_ps, "first_token_ts": first_ps, "last_token_ts": last_ps}
        seconds = {name: time_ps / PS for name, time_ps in times.items()}
        try:
            self._append(f"{json.dumps({**lengths, **seconds, **self._mark})}\n".encode())
        except OSError as error:
            with suppress(OSError):  # a disk that fails keeps the part of a line that it has
                self._file.truncate(self._num_bytes)
            self.failure = InputError(
                key="--log", value=self._path, problem=error.strerror, remedy="it ends here"
            )
            self.on_failure()

    def _append(self, line: bytes) -> None:
        left = memoryview(line)
        while left:
            left = left[self._file.write(left) :]
        self._num_bytes += len(line)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
