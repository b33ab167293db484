"""A plan as lines and tables, a Pareto chart and a page."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from markupsafe import Markup

from testbed.experiments.look.pages.page import (
    NAME,
    NUMBER,
    Chart,
    Series,
    Table,
    render,
    whole_page,
)
from testbed.experiments.plan.bottlenecks import broken
from testbed.experiments.plan.cost_errors import NOT_COMPARABLE
from testbed.experiments.plan.deployment_plan import AT_LOAD, Plan
from testbed.experiments.plan.rows import (
    CHEAPEST,
    Row,
    per_gpu,
    per_user,
    rows_of,
)
from testbed.experiments.plan.space import label_of
from testbed.experiments.plan.verdicts import REFUSED, Dearer, Keeps, Misses
from testbed.experiments.runs.part_words import part_words
from testbed.experiments.runs.quantities import few_requests, number
from testbed.experiments.runs.run_words import (
    future_read_by,
    remark_on_ways,
)
from testbed.run.metrics import in_words
from testbed.run.simulate import OVERLOAD
from testbed.run.summaries import RUN as DESCRIPTION
from testbed.run.summaries import costs_of
from testbed.study.replications import NOT_DISTINGUISHABLE, Interval

THOUSAND = 1000
SHORT = 10  # characters of a run folder's name
REPORT = "report.html"  # of a run, in its folder
RUN, WHY = "run", "why"
LIMITED = (
    "limited by: memory (requests are preempted, or hold 90% of the pool), the link of hand-overs, "
    "or the work of the objective nearest its limit: prefill (TTFT), decode (TPOT, ITL, end to end)"
)
TEXTS = ("limited by", WHY, "less the cheapest", "costs", RUN)


def lines_of(plan: Plan) -> list[str]:
    """Lines of the question and its answer."""
    question = plan.question
    objectives = [
        f"{name.removesuffix('_s').upper()} {seconds:g} s"
        for name, seconds in question.objectives.items()
    ]
    seeds = f"{len(question.seeds)} seeds" if len(question.seeds) > 1 else "one seed"
    return [
        f"SLO: {', '.join(objectives)} for {100 * question.share:g}% of the requests, with "
        f"{plan.mode.served}, {seeds}",
        *_about(plan),
        plan.prices.source,
        _counts(plan),
        *([_tied(plan)] if plan.ranked else [_nearest(plan)]),
        *_refused(plan),
        *_behind(plan),
        *_short(plan),
        *_costs(plan),
        *([LIMITED] if plan.ranked or plan.misses or plan.dearer else []),
    ]


def _about(plan: Plan) -> Iterator[str]:
    """The model and the workload of the first simulated deployment."""
    for verdict in plan.verdicts:
        if isinstance(verdict, Keeps | Misses | Dearer):
            run = verdict.outcomes[0].summary[DESCRIPTION]
            yield f"model: {run['model']}; requests: {part_words(run['trace'])}"
            return


def _counts(plan: Plan) -> str:
    counts = {
        "keep the SLO": len(plan.ranked),
        "miss it": len(plan.misses),
        "are dearer by simulation": len(plan.dearer),
        "are not simulated": len(plan.pruned),
    }
    texts = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return f"{len(plan.verdicts)} deployments: {texts}; {plan.num_simulations} simulations"


def _refused(plan: Plan) -> list[str]:
    """The remark that the answer is of other deployments than those that could not be built."""
    refused = [verdict for verdict in plan.pruned if verdict.limit == REFUSED]
    if not refused:
        return []
    return [
        f"incomplete: {len(refused)} of {len(plan.verdicts)} deployments are refused, such as "
        f"{refused[0].deployment.name}: {refused[0].reason}"
    ]


def _behind(plan: Plan) -> Iterator[str]:
    """The remark that a deployment keeps the SLO only because its runs end before its queue has
    grown.
    """
    for verdict in plan.ranked:
        summaries = [outcome.summary for outcome in verdict.outcomes]
        overloads = [summary[OVERLOAD] for summary in summaries if summary.get(OVERLOAD)]
        if overloads:
            yield (
                f"{verdict.candidate.deployment.name} is overloaded in {len(overloads)} of "
                f"{len(summaries)} runs: {in_words(overloads[0])} (raise arrivals.duration_s, or "
                "give a longer trace)"
            )


def _short(plan: Plan) -> list[str]:
    """The remark that runs are too short, with the deployment of which that is most true."""
    longest = max(plan.ranked, key=lambda verdict: verdict.filling, default=None)
    if longest is None:
        return []
    name = longest.candidate.deployment.name
    few = few_requests(of.summary for verdict in plan.ranked for of in verdict.outcomes)
    return [*plan.mode.short(name, longest.filling), *few]


def _tied(plan: Plan) -> str:
    """The cheapest deployment, and those whose cost the data do not distinguish from it; no name
    if the errors of costs of another origin are larger than the difference.
    """
    best = plan.ranked[0].candidate.deployment.name
    if within := plan.incomparable:
        names = "; ".join([best, *(of.candidate.deployment.name for of in within)])
        return (
            f"cheapest: {NOT_COMPARABLE}: {names} (their costs are of different origins, whose "
            "errors together are larger than the differences)"
        )
    words = (CHEAPEST, "equal", NOT_DISTINGUISHABLE)
    tied = [row for row in rows_of(plan) if row.difference.startswith(words)]
    if len(tied) < 2:
        return f"cheapest: {best}"
    others = f"{len(tied) - 1} other{'s' if len(tied) > 2 else ''}"
    return f"cheapest: {best}; not distinguishable from it, or equal: {others}"


def _nearest(plan: Plan) -> str:
    """The nearest miss and what breaks it, if nothing keeps the SLO."""
    if not plan.misses:
        return "nothing keeps the SLO: no deployment is simulated (see the reasons)"
    nearest = plan.misses[0]
    return (
        f"nothing keeps the SLO; nearest: {nearest.candidate.deployment.name}, "
        f"{nearest.inside} of the requests inside, limited by {nearest.limit}: "
        f"{broken(nearest.outcomes, plan.question)}"
    )


def _costs(plan: Plan) -> list[str]:
    """The source of the times, with a remark if there are several, and the deployments that read
    the future.
    """
    summaries = {
        verdict.candidate.deployment.name: verdict.outcomes[0].summary
        for verdict in plan.verdicts
        if isinstance(verdict, Keeps | Misses | Dearer)
    }
    texts = dict.fromkeys(costs_of(summary) for summary in summaries.values())
    futures = {name: future_read_by(summary) for name, summary in summaries.items()}
    mixed = dict.fromkeys(summary[DESCRIPTION].get("servers") for summary in summaries.values())
    return [
        *(f"costs: {text}" for text in texts if text),
        *(f"other servers: {text}" for text in mixed if text),
        *remark_on_ways(summaries),
        *(
            f"{name} reads the future, as no real server can: {future}"
            for name, future in futures.items()
            if future
        ),
    ]


def tables_of(plan: Plan) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, head and cells of a table for each verdict that there is."""
    rows = rows_of(plan)
    cells = {
        "Keep the SLO": [_cells(row, plan) for row in rows if row.verdict == "keeps"],
        "Simulated, miss it or are dearer": [
            _cells(row, plan) for row in rows if row.verdict in ("misses", "dearer")
        ],
        "Not simulated": _grouped([row for row in rows if row.verdict == "pruned"]),
    }
    heads = {title: _filled(of_title) for title, of_title in cells.items() if of_title}
    return [
        (title, head, [[row[name] for name in head] for row in cells[title]])
        for title, head in heads.items()
    ]


def _grouped(rows: Sequence[Row]) -> list[dict[str, str]]:
    """A row for each reason: how many deployments it excludes, and their values on each axis."""
    groups = dict[tuple[str, str], list[Row]]()
    for row in rows:
        groups.setdefault((row.limit, row.reason), []).append(row)
    return [
        {
            "deployments": str(len(group)),
            **{label_of(key): _values(key, group) for key in group[0].deployment},
            "limited by": limit,
            WHY: reason,
        }
        for (limit, reason), group in groups.items()
    ]


def _values(key: str, rows: Sequence[Row]) -> str:
    return ", ".join(dict.fromkeys(row.deployment[key] for row in rows))


def _filled(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """The columns in which a row has something."""
    return [name for name in rows[0] if any(row[name] for row in rows)]


def _cells(row: Row, plan: Plan) -> dict[str, str]:
    unit = plan.prices.unit
    cost = row.per_million_requests
    interval = None if cost is None else Interval(cost, row.half_width, len(row.runs))
    return {
        RUN: row.runs[0] if row.runs else "",
        "rank": "" if row.rank is None else str(row.rank),
        **{label_of(key): value for key, value in row.deployment.items()},
        "GPUs": _text(row.gpus),
        f"{unit}/h": _text(row.hourly),
        "req/s": _text(row.rate),
        f"{unit}/M req": "" if interval is None else str(interval),
        f"{unit}/M output tokens": _text(row.per_million_tokens),
        "less the cheapest": row.difference,
        "% inside": "" if row.share_inside is None else f"{100 * row.share_inside:.1f}",
        "tokens/s/GPU": _text(row.per_gpu),
        "tokens/s/user": _text(row.per_user),
        "limited by": row.limit,
        "costs": row.way,
        WHY: row.reason,
    }


def _text(value: float | None) -> str:
    return "" if value is None else number(value)


def chart_of(plan: Plan) -> Chart:
    """Output tokens/s of a GPU over those of a user, of runs that keep the SLO: for each kind of
    server the points that no other one of it exceeds in both.
    """
    points = dict[str, list[tuple[float, float]]]()
    for verdict in plan.ranked:
        for outcome in (*verdict.outcomes, *verdict.others):
            speed = per_user(outcome)
            if speed is not None:
                point = speed, per_gpu(verdict.candidate, outcome) / THOUSAND
                points.setdefault(_kind(verdict), []).append(point)
    fronts = {name: front(of_kind) for name, of_kind in points.items()}
    series = [
        Series(name, [x for x, _ in of_kind], [y for _, y in of_kind])
        for name, of_kind in fronts.items()
    ]
    return Chart(
        "Pareto fronts, by kind of server",
        "Output tokens/s of a user",
        "1,000 output tokens/s of a GPU",
        series,
        markers=True,
    )


def front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other exceeds in one number and equals in the other, by the first."""
    kept = list[tuple[float, float]]()
    for x, y in sorted(set(points), reverse=True):
        if not kept or y > kept[-1][1]:
            kept.append((x, y))
    return kept[::-1]


def _kind(verdict: Keeps) -> str:
    candidate = verdict.candidate
    servers = (engine.server for engine in candidate.engines)
    kinds = dict.fromkeys(f"{server.gpu.name}, TP {server.num_gpus}" for server in servers)
    return " and ".join(kinds) + (", prefill apart" if candidate.config.prefill_replicas else "")


def page_of(plan: Plan, page: Path, runs: Path) -> str:
    """A self-contained page at a path; its rows link to the reports of their runs."""
    tables = [
        Table(
            title,
            head,
            [_linked(head, cells, page, runs) for cells in rows],
            [_class(name, column) for name, *column in zip(head, *rows, strict=True)],
        )
        for title, head, rows in tables_of(plan)
    ]
    charts = [chart_of(plan)] if plan.ranked else []
    part = render("plan/plan.html", lines=lines_of(plan), charts=charts, tables=tables)
    return whole_page(title=_title(plan), parts=[part])


def _title(plan: Plan) -> str:
    what = "the given load" if plan.mode is AT_LOAD else "each one's highest rate"
    return f"Cheapest deployment that keeps the SLO, at {what}"


def _class(name: str, cells: Sequence[str]) -> str:
    """The class of a column; names, as those of GPUs, stay in one line."""
    if name in TEXTS:
        return ""
    return NUMBER if any(cell[:1].isdigit() for cell in cells) else NAME


def _linked(head: Sequence[str], cells: Sequence[str], page: Path, runs: Path) -> list[str]:
    """The cells of a row, whose run is a link."""
    return [
        _link(cell, page, runs) if name == RUN and cell else cell
        for name, cell in zip(head, cells, strict=True)
    ]


def _link(run_id: str, page: Path, runs: Path) -> Markup:
    place = os.path.relpath(runs / run_id / REPORT, page.parent)
    return Markup('<a href="{}">{}</a>').format(place, run_id[:SHORT])


def shortened(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """The rows for a terminal: of a run the beginning of its folder's name."""
    return [
        [cell[:SHORT] if name == RUN else cell for name, cell in zip(head, row, strict=True)]
        for row in rows
    ]
