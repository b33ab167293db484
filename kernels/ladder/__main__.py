"""`python -m kernels.ladder --out FOLDER`: checks every step, lets the engine decode through it, times it; needs a GPU.

Rows go to right.csv, tokens.csv and times.csv; `python -m kernels.ladder.draw FOLDER` makes table and figure of them.
"""

import argparse
from pathlib import Path

from kernels.ladder.draw import draw
from kernels.ladder.rows import write_rows
from kernels.launch.compile import KernelsUnavailable, require_gpu


def main() -> None:
    """Check, decode, time, draw."""
    parser = argparse.ArgumentParser("python -m kernels.ladder", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the rows, the table and the figure")
    options = parser.parse_args()
    try:
        require_gpu()
    except KernelsUnavailable as error:
        raise SystemExit(f"kernels.ladder: {error}; kept rows are drawn by `python -m kernels.ladder.draw`") from None
    options.out.mkdir(parents=True, exist_ok=True)
    run(options.out)


def run(out: Path) -> None:
    """Everything, into a folder; nothing is timed before all steps were right."""
    from kernels.ladder.check import check_all
    from kernels.ladder.times import time_all
    from kernels.ladder.tokens import compare_all
    from kernels.measure.bench_inputs import Pools
    from kernels.measure.fingerprint import fingerprint
    from kernels.measure.timing import warm_up

    about = fingerprint()
    right = check_all()
    write_rows(out / "right.csv", right, about)
    wrong = [row for row in right if not row["right"]]
    if wrong:
        raise SystemExit("\n".join(["a step disagrees with the reference; nothing was timed", *map(str, wrong)]))
    print(f"{len(right)} checks right", flush=True)
    tokens = compare_all()
    write_rows(out / "tokens.csv", tokens, about)
    warm_up()
    write_rows(out / "times.csv", time_all(Pools(4 << 30)), about)
    print(draw(out))
    if not all(row["right"] for row in tokens):
        raise SystemExit("a step's tokens differ from those of plain attention")


if __name__ == "__main__":
    main()
