"""What a pool full of sequences holds, by model and page rule; and what prompts find that are sent twice."""

import pandas as pd
from matplotlib.figure import Figure

from testbed.experiments.runs.figure_style import HATCH_COLOR, KIND_COLORS, KIND_HATCHES, new_figure

PARTS = {"useful_gib": "read by later tokens", "wasted_gib": "held and not read"}


def groups(table: pd.DataFrame) -> Figure:
    """KV groups: what a full pool holds, by model and page rule; the rest is free; a panel for each trace."""
    traces, rules = (list(dict.fromkeys(table[name])) for name in ("trace", "rule"))
    figure = new_figure(6.5, 2.4 * len(traces))
    for trace, axes in zip(traces, figure.subplots(len(traces), 1, squeeze=False)[:, 0], strict=True):
        rows = table[table["trace"] == trace].groupby(["model", "rule"], sort=False).mean(numeric_only=True)
        models = list(dict.fromkeys(rows.index.get_level_values("model")))
        for (model, rule), row in rows.iterrows():
            place, bottom = models.index(model) + (rules.index(rule) - (len(rules) - 1) / 2) / (len(rules) + 1), 0.0
            for (part, label), kind in zip(PARTS.items(), ("token_states", "internal"), strict=True):
                height = 100 * row[part] / row["pool_gib"]
                axes.bar(place, height, 0.9 / (len(rules) + 1), bottom, label=label, facecolor=KIND_COLORS[kind],
                         hatch=KIND_HATCHES[kind], edgecolor=HATCH_COLOR, linewidth=0)  # fmt: skip
                bottom += height
            axes.annotate(rule, (place, 2), rotation=90, ha="center", fontsize=6, color="white")
        axes.set_xticks(range(len(models)), models)
        axes.set(ylabel="Pool (%)", ylim=(0, 100), title=trace)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles[: len(PARTS)], labels[: len(PARTS)], loc="outside upper center", ncols=len(PARTS))
    return figure


def hit_units(table: pd.DataFrame) -> Figure:
    """Hit units: tokens found by prompt length, a staircase for each number of dropped units; a panel a model."""
    figure = new_figure(6.0, 2.4)
    models = table.groupby("model", sort=False)
    for axes, (model, rows) in zip(
        figure.subplots(1, models.ngroups, sharey=True, squeeze=False)[0], models, strict=True
    ):
        for dropped, curve in rows.groupby("dropped_units"):
            marked, label = curve[curve["marked"]], "last unit dropped" if dropped else "all whole units"
            axes.plot(curve["prompt_tokens"], curve["law_tokens"], "-", color=f"C{dropped}", label=f"law: {label}")
            axes.plot(marked["prompt_tokens"], marked["hit_tokens"], "o", color=f"C{dropped}", label=f"found: {label}")
        axes.set(xlabel="Prompt sent twice (tokens)", title=model, xlim=(0, None), ylim=(0, None))
        axes.locator_params(axis="x", nbins=4)
    figure.axes[0].set_ylabel("Tokens found")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure
