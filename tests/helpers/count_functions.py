"""Functions of this project that one request runs through, from `testbed run` to its row.

`python tests/helpers/count_functions.py [--list]` prints how many different functions run before,
in and after the event loop, in how many files, and how many calls there are; `--list` names them.
A function counts once, by its code object; lambdas and comprehensions are part of the function
that has them, and the bodies of classes and modules are no functions.
"""

import sys
import tempfile
from collections import Counter
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass, field
from inspect import CO_OPTIMIZED
from io import StringIO
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

LENGTHS = "input_tokens,output_tokens,arrival_s\n20,40,0\n"
WORDS = ("run", "trace=csv", "trace.path=one.csv", "arrivals=replay", "outputs=tables")
PARTS = ("before", "loop", "after")


@dataclass
class Profile:
    """Calls by code object and part of the run; `root`: the folder whose files count."""

    root: Path
    calls: dict[str, Counter[CodeType]] = field(
        default_factory=lambda: {part: Counter() for part in PARTS}
    )
    part: str = "before"
    is_ours: dict[CodeType, bool] = field(default_factory=dict)

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Follow one event of `sys.setprofile`."""
        code = frame.f_code
        if event not in ("call", "return") or not self._counts(code):
            return
        is_loop = code.co_name == "simulate_parts" and code.co_filename.endswith(
            "engine/simulation.py"
        )
        if event == "call":
            self.part = "loop" if is_loop else self.part
            self.calls[self.part][code] += 1
        elif is_loop:
            self.part = "after"

    def _counts(self, code: CodeType) -> bool:
        if code not in self.is_ours:
            path = Path(code.co_filename)
            is_function = bool(code.co_flags & CO_OPTIMIZED) and code.co_name[0] != "<"
            self.is_ours[code] = is_function and path.resolve().is_relative_to(self.root)
        return self.is_ours[code]

    def functions(self, *parts: str) -> set[CodeType]:
        """The functions that ran in these parts, or in all of them."""
        return {code for part in parts or PARTS for code in self.calls[part]}

    def files(self) -> set[str]:
        """The files of all functions that ran."""
        return {str(Path(code.co_filename).resolve()) for code in self.functions()}

    @property
    def num_calls(self) -> int:
        """Calls of all functions."""
        return sum(counter.total() for counter in self.calls.values())


def count() -> Profile:
    """Run one request of 20 prompt and 40 output tokens in a new folder, and count."""
    import testbed
    from testbed.experiments.cli.main import main

    profile = Profile(Path(testbed.__file__).resolve().parents[1])
    with tempfile.TemporaryDirectory() as folder, chdir(folder), redirect_stdout(StringIO()):
        Path("one.csv").write_text(LENGTHS)
        sys.setprofile(profile)
        try:
            code = main(list(WORDS))
        finally:
            sys.setprofile(None)
    assert code == 0, "the run failed"
    return profile


def report(profile: Profile, *, listed: bool) -> str:
    """The counts, and with `listed` every function with its calls, by part."""
    before, everything = profile.functions("before"), profile.functions()
    loop = profile.functions("loop") - before
    lines = [
        f"before the event loop: {len(before)} functions",
        f"first called in the event loop: {len(loop)}",
        f"first called after it: {len(everything - before - loop)}",
        f"in all: {len(everything)} functions in {len(profile.files())} files,"
        f" {profile.num_calls:,} calls",
    ]
    for part in PARTS if listed else ():
        lines.append(f"== {part}")
        for code, calls in profile.calls[part].items():
            name = Path(code.co_filename).resolve().relative_to(profile.root)
            lines.append(f"{calls:6} {name}:{code.co_firstlineno} {code.co_qualname}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(report(count(), listed="--list" in sys.argv[1:]))
