"""The log of a server: one line for each request that has ended, with its lengths and times."""

import json
from pathlib import Path
from typing import TextIO

from testbed.core.errors import InputError
from testbed.core.request import PS


class RequestLog:
    """Writes a requests.jsonl, which `testbed validate` reads. Times are simulated seconds.

    Prompts are not written, nor the number of sequences, which the format lacks.
    """

    def __init__(self, path: Path) -> None:
        if not path.name.endswith(".jsonl"):
            raise InputError(f"--log {path}: must end in .jsonl")
        try:
            self._file: TextIO = path.open("x", encoding="utf-8")
        except OSError as error:
            raise InputError(f"--log {path}: {error.strerror} (give a new file)") from error

    def write(
        self, prompt_len: int, output_len: int, queued_ps: int, first_ps: int, last_ps: int
    ) -> None:
        """Append a request: lengths in tokens, times in ps."""
        lengths = {"input_toks": prompt_len, "output_toks": output_len}
        times = {"queued_ts": queued_ps, "first_token_ts": first_ps, "last_token_ts": last_ps}
        seconds = {name: time_ps / PS for name, time_ps in times.items()}
        self._file.write(json.dumps({**lengths, **seconds}) + "\n")

    def close(self) -> None:
        """Write what is left, and close the file."""
        self._file.close()
