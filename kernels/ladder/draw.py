"""The ladder's table and figure from stored rows; needs no GPU."""

from pathlib import Path

from testbed.kernels.measure.fingerprint import read_rows

MAKER = "testbed ladder run"
Times = dict[str, dict[str, float]]  # microseconds by load, then by step, in the file's order


def draw(folder: Path) -> str:
    """Write ladder.md and ladder.png; returns the table."""
    about, rows = read_rows(folder / "times.csv", MAKER)
    times: Times = {}
    for row in rows:
        times.setdefault(row["load"], {})[row["step"]] = float(row["median_us"])
    device = about.partition("device ")[2].partition(",")[0] or "an unknown device"
    words = [f"# The ladder on {device}", f"Drawn by `testbed ladder draw`; {about}.", table(times), checks(folder)]
    text = "\n\n".join(words) + "\n"
    (folder / "ladder.md").write_text(text, encoding="utf-8")
    figure(times, folder / "ladder.png", device)
    return text


def table(times: Times) -> str:
    """Microseconds of a layer's attention, and in brackets the speed-up over the previous step."""
    steps = list(next(iter(times.values())))
    lines = [["step", *times], ["---"] * (len(times) + 1)]
    for i, step in enumerate(steps):
        cells = [f"{by[step]:,.1f}" + (f" ({by[steps[i - 1]] / by[step]:.1f}x)" if i else "") for by in times.values()]
        lines.append([step, *cells])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def checks(folder: Path) -> str:
    """The number of correct rows of right.csv, and the wrong ones."""
    rows = read_rows(folder / "right.csv", MAKER)[1]
    wrong = [row for row in rows if row["right"] != "True"]
    text = f"{len(rows) - len(wrong)} of {len(rows)} errors against the reference within tolerance."
    return text + "".join(f" WRONG: {', '.join(row.values())}." for row in wrong)


def figure(times: Times, path: Path, device: str) -> None:
    """A group of bars per load, a bar per step, on a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    steps = list(next(iter(times.values())))
    fig, axes = plt.subplots(figsize=(10, 4), layout="constrained")
    shades = plt.get_cmap("viridis")
    for i, step in enumerate(steps):
        places = [at + (i - (len(steps) - 1) / 2) * 0.14 for at in range(len(times))]
        color = shades(0.9 - 0.85 * i / (len(steps) - 1))
        bars = axes.bar(places, [by[step] for by in times.values()], 0.13, label=step, color=color)
        axes.bar_label(bars, fmt="{:,.0f}", fontsize=6, rotation=90, padding=2)
    axes.set_yscale("log")
    axes.margins(y=0.15)
    axes.set_xticks(range(len(times)), [name.replace(" and ", "\nand ") for name in times])
    axes.set(ylabel="microseconds a layer", title=f"Attention of one layer, 32/8 heads of 128, {device}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=len(steps), loc="upper center", bbox_to_anchor=(0.5, -0.15))
    fig.savefig(path, dpi=150)
    plt.close(fig)
