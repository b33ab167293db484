"""The results of the bench: lines to read, and every time in separate columns for programs."""

import csv
import io
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from testbed.kernels.measure.fingerprint import in_words

PROSE = ("what", "case", "measured", "goal", "verdict")


@dataclass(frozen=True, slots=True)
class Time:
    """Microseconds of one kernel on one shape: the median, and the 10th and 90th percentile where measured.

    kernel: paged, contiguous, paper, torch; fused or per block for swaps, direction out or in. context: tokens per
    sequence, their mean where spread is ragged. Fields that do not apply or are unknown are None.
    """

    kernel: str
    median_us: float
    low_us: float | None = None
    high_us: float | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_size: int | None = None
    block_size: int | None = None
    spread: str | None = None
    batch: int | None = None
    context: int | None = None
    direction: str | None = None
    num_blocks: int | None = None


COLUMNS = tuple(column.name for column in fields(Time))


@dataclass
class Report:
    """The printed lines and their times, collected for the tables."""

    lines: list[tuple[tuple[str, str, str, str, str], tuple[Time, ...]]] = field(default_factory=list)

    def add(self, what: str, case: str, value: str, goal: str, met: bool | None, *times: Time) -> None:
        """Add and print one result; met is None where there is no goal."""
        verdict = "" if met is None else "met" if met else "MISSED"
        self.lines.append(((what, case, value, goal, verdict), times))
        print(f"{what} | {case} | {value} | {goal} | {verdict}", flush=True)

    def write(self, folder: Path, device: dict[str, object]) -> None:
        """Write CSV and Markdown, with device and date in the header."""
        about = in_words(device)
        (folder / "h200.csv").write_text(f"# {about}\n{self.table()}")
        rows = [PROSE, ("---",) * 5, *(prose for prose, _ in self.lines)]
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        title = f"# Kernels on {device['device']}, {device['date']}\n\nPrinted by `testbed bench-kernels`; {about}."
        (folder / "h200.md").write_text(title + "\n\n" + "\n".join(lines) + "\n")

    def table(self) -> str:
        """One row per time; the first row of a line has its text, further ones only the identifying cells."""
        text = io.StringIO()
        rows = csv.writer(text, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
        rows.writerow([*PROSE, *COLUMNS])
        for prose, times in self.lines:
            rows.writerow([*prose, *(_cells(times[0]) if times else [""] * len(COLUMNS))])
            rows.writerows([*prose[:2], "", "", "", *_cells(time)] for time in times[1:])
        return text.getvalue()


def _cells(time: Time) -> list[str | float]:
    values = asdict(time).values()
    return ["" if value is None else round(value, 3) if isinstance(value, float) else value for value in values]
