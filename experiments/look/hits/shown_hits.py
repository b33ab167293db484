"""Hit curves as lines and a table, a chart, a page, and columns of a CSV."""

from collections.abc import Sequence
from typing import Any

from testbed.experiments.look.hits.hit_curves import BELADY, HitCurves
from testbed.experiments.look.pages.page import NUMBER, Chart, Series, Table, render, whole_page
from testbed.experiments.runs.part_words import part_words

NAMES = {BELADY: "Belady (bound)", "lru": "LRU"}


def name_of(order: str) -> str:
    """The order's name in tables and legends."""
    return NAMES.get(order, order)


def lines_of(curves: HitCurves) -> list[str]:
    """The lines above the table."""
    lines = [
        f"trace: {part_words(curves.trace)}",
        f"{curves.num_prompts:,} prompts of {curves.prompt_tokens:,} tokens, one at a time, in "
        f"blocks of {curves.block_size} tokens of {curves.model} "
        f"({curves.block_bytes / 2**20:,.4g} MiB)",
        f"{curves.stored_blocks:,} different full blocks: "
        f"{_gib(curves.gib(curves.stored_blocks))} GiB",
        "cells: % of the prompts' tokens that are found, without a clock; what requests generate "
        "is not stored (testbed run's \"prompt found, %\" is the same share by the server's own "
        "policy, with its requests at their times and in flight together)",
    ]
    too_small = [size for size in curves.sizes if size < curves.largest_prompt]
    if too_small:
        lines.append(
            "a prompt with more blocks than the cache is refused and finds nothing (the largest "
            f"has {curves.largest_prompt:,})"
        )
    if BELADY in curves.hits:
        lines.append(f"{name_of(BELADY)} reads the future, as no real cache can")
    if len(curves.pools) > 1:
        lines.append("with a tier: one list over all pools, each block stored once")
    return lines


def _gib(size: float) -> str:
    return f"{size:,.0f}" if size >= 100 else f"{size:.3g}"


def head_of(curves: HitCurves) -> list[str]:
    """The table's columns."""
    pool = ["pool"] if curves.pools else []
    return ["blocks", "GiB", *pool, *(name_of(order) for order in curves.hits)]


def cells_of(curves: HitCurves) -> list[list[str]]:
    """The table's rows, one for each size."""
    shares = [curves.share(order) for order in curves.hits]
    rows = []
    for size, *shares_of_size in zip(curves.sizes, *shares, strict=True):
        pool = [curves.pool_of(size)] if curves.pools else []
        percent = [f"{100 * share:.2f}" for share in shares_of_size]
        rows.append([f"{size:,}", _gib(curves.gib(size)), *pool, *percent])
    return rows


def chart_of(curves: HitCurves) -> Chart:
    """The share found over the size in GiB, a curve for each order."""
    gib = [curves.gib(size) for size in curves.sizes]
    series = [
        Series(name_of(order), gib, [100 * share for share in curves.share(order)])
        for order in curves.hits
    ]
    label = "Prompt tokens found (%)"
    return Chart("Hit rate", "Cache (GiB)", label, series, markers=True, log_x=True)


def columns_of(curves: HitCurves) -> dict[str, Sequence[Any]]:
    """The columns of a CSV: sizes, then for each order blocks found and the share of tokens."""
    columns: dict[str, Sequence[Any]] = {
        "num_blocks": list(curves.sizes),
        "gib": [curves.gib(size) for size in curves.sizes],
    }
    for order, hits in curves.hits.items():
        columns |= {f"{order}_blocks_found": list(hits), f"{order}_share": curves.share(order)}
    return columns


def page_of(curves: HitCurves, title: str) -> str:
    """A self-contained page: the lines, the chart and the table."""
    classes = ["" if name == "pool" else NUMBER for name in head_of(curves)]
    table = Table("Hit rate by cache size", head_of(curves), cells_of(curves), classes)
    part = render(
        "look/hits/hits.html", lines=lines_of(curves), chart=chart_of(curves), table=table
    )
    return whole_page(title=title, parts=[part])
