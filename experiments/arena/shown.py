"""The arena's table for the terminal, as CSV and as a page."""

from collections.abc import Mapping, Sequence

from testbed.experiments.arena.bench import Games
from testbed.experiments.arena.bounds import NAMES, WHY
from testbed.experiments.arena.standings import Standing
from testbed.experiments.look.pages.page import NUMBER, Table, render, whole_page
from testbed.experiments.runs.quantities import number, percent

HEAD = (
    "rank",
    "entrant",
    "job time, % of LRU's",
    "hits",
    "way to Belady",
    "TTFT p50",
    "TTFT p99",
    "ITL p50",
    "ITL p99",
    "goodput, req/s",
    "prompt tokens computed",
    "idle memory",
    "CPU, us",
    "note",
)
BOUND = "bound"


def cells_of(standings: Sequence[Standing]) -> list[list[str]]:
    """A row of text for each standing, by HEAD."""
    return [_cells(standing) for standing in standings]


def _cells(standing: Standing) -> list[str]:
    ratios = (standing.ttft_p50, standing.ttft_p99, standing.itl_p50, standing.itl_p99)
    return [
        BOUND if standing.rank is None else str(standing.rank),
        standing.name,
        str(standing.job),
        percent(standing.hits),
        "" if standing.way is None else percent(standing.way),
        *(f"{ratio:.1f}" for ratio in ratios),
        number(standing.goodput),
        f"{standing.computed:,}",
        percent(standing.idle_memory),
        number(standing.cpu_us),
        f"on {standing.only} alone" if standing.only else "",
    ]


def lines_of(games: Games, num_seeds: int) -> list[str]:
    """The games, how to read the ranks, and the entrants that do not count."""
    about = games.about
    return [
        f"suite {about['suite']} ({about['suite_hash']}), rules of {about['rules']}, {num_seeds} "
        f"seeds; testbed {about['testbed']}",
        "job time: geometric mean over workloads, pools and loads, 95% interval over seeds "
        "(Student's t), TTFT and ITL likewise in % of LRU's; rank: 1 + how many are faster by an "
        "interval without zero",
        *(f"out: {name}: {reason}" for name, reason in games.out.items()),
    ]


def of_each_case(games: Games) -> dict[str, list[list[str]]]:
    """For each condition the mean job time and hits of every entrant, the fastest first."""
    conditions = dict.fromkeys(place for cells in games.rows.values() for place, _ in cells)
    return {place: _of_case(games, place) for place in conditions}


def _of_case(games: Games, place: str) -> list[list[str]]:
    means = list[tuple[float, str, float]]()
    for name, cells in games.rows.items():
        rows = [row for (condition, _), row in cells.items() if condition == place]
        job = sum(row.job_s for row in rows) / len(rows)
        means.append((job, name, sum(row.hits for row in rows) / len(rows)))
    return [[name, f"{job:.4g}", percent(hits)] for job, name, hits in sorted(means)]


def page_of(games: Games, standings: Sequence[Standing], num_seeds: int) -> str:
    """One page: the table, and each condition below it."""
    head = ["entrant", "job time, s", "hits"]
    cases = [
        Table(place, head, rows, ["", NUMBER, NUMBER])
        for place, rows in of_each_case(games).items()
    ]
    bounds = [f"{name}: {WHY[name]}" for name in NAMES]
    lines = [*lines_of(games, num_seeds), *bounds]
    table = _of_standings(standings)
    part = render("arena/arena.html", lines=lines, standings=table, cases=cases)
    return whole_page(
        title=f"Arena: {len(standings)} on suite {games.about['suite']}", parts=[part]
    )


def _of_standings(standings: Sequence[Standing]) -> Table:
    """The table of the page, without columns in which nothing stands."""
    rows = cells_of(standings)
    filled = [place for place in range(len(HEAD)) if any(row[place] for row in rows)]
    head = [HEAD[place] for place in filled]
    classes = ["" if name in ("entrant", "note") else NUMBER for name in head]
    return Table("Standings", head, [[row[place] for place in filled] for row in rows], classes)


def columns_of(games: Games) -> Mapping[str, list[object]]:
    """Every cell of every entrant, as columns of a CSV."""
    from testbed.experiments.arena.results import COLUMNS

    names = ("entrant", "condition", "seed", *COLUMNS)
    rows = [
        (name, condition, seed, *(getattr(row, column) for column in COLUMNS))
        for name, cells in games.rows.items()
        for (condition, seed), row in cells.items()
    ]
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}
