"""The results of the bench: lines to read, and every time in separate columns for programs."""

from pathlib import Path
from typing import Any

from testbed.kernels.measure.fingerprint import in_words, write_rows

PROSE = ("what", "case", "measured", "goal", "verdict")
# Of a time, in microseconds: median, 10th and 90th percentile. kernel: paged, contiguous, paper, torch; fused or
# per block for swaps, direction out or in. context: tokens per sequence, their mean where spread is ragged.
COLUMNS = ("kernel", "median_us", "low_us", "high_us", "num_heads", "num_kv_heads", "head_size", "block_size", "spread",
           "batch", "context", "direction", "num_blocks")  # fmt: skip
Time = dict[str, Any]


class Report:
    """The printed lines and their times, collected for the tables."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, what: str, case: str, value: str, goal: str, met: bool | None, *times: Time) -> None:
        """Add and print one result; met is None where there is no goal. Its text has a row with the first time."""
        prose = dict(
            zip(PROSE, (what, case, value, goal, "" if met is None else "met" if met else "MISSED"), strict=True)
        )
        print(" | ".join(prose.values()), flush=True)
        self.rows.append(prose | (times[0] if times else {}))
        self.rows += [{"what": what, "case": case, **time} for time in times[1:]]

    def write(self, folder: Path, device: dict[str, object]) -> None:
        """Write CSV and Markdown, with device and date in the header."""
        about = in_words(device)
        write_rows(
            folder / "h200.csv", [{name: row.get(name, "") for name in (*PROSE, *COLUMNS)} for row in self.rows], about
        )
        rows = [PROSE, ("---",) * 5, *([row[name] for name in PROSE] for row in self.rows if "verdict" in row)]
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        title = f"# Kernels on {device['device']}, {device['date']}\n\nPrinted by `testbed bench-kernels`; {about}."
        (folder / "h200.md").write_text(title + "\n\n" + "\n".join(lines) + "\n")
