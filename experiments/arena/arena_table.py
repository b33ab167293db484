"""The arena's table for the terminal, as CSV and as a page."""

from collections.abc import Mapping, Sequence

from testbed.experiments.arena.across_rules import AcrossRules
from testbed.experiments.arena.arena_bounds import NAMES, WHY
from testbed.experiments.arena.games import Games
from testbed.experiments.arena.standings import Standing, standings
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
        _note(standing),
    ]


def _note(standing: Standing) -> str:
    only = f"differs from LRU on {standing.only} alone" if standing.only else ""
    return ", ".join(filter(None, (standing.resources, only)))


def lines_of(games: Games, num_seeds: int) -> list[str]:
    """The games, how to read the ranks, and the entrants that do not count."""
    about = games.about
    return [
        f"suite {about['suite']} ({about['suite_hash']}), rules of {about['rules']}, {num_seeds} "
        f"seeds; testbed {about['testbed']}",
        "job time: geometric mean over workloads, pools and loads, 95% interval over seeds "
        "(Student's t), TTFT and ITL likewise in % of LRU's; rank: 1 + how many with the same "
        "resources are faster by an interval without zero",
        *(
            [f"not served by {about['rules']}: {', '.join(games.left_out)}"]
            if games.left_out
            else ()
        ),
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


def ranked(games: Games) -> list[Standing]:
    """The standings of all entrants and bounds."""
    resources = {name: entrant.resources for name, entrant in games.entrants.items()}
    return standings(games.rows, resources)


def page_of(games: Games, rows: Sequence[Standing], num_seeds: int) -> str:
    """One page: the table, and each condition below it."""
    head = ["entrant", "job time, s", "hits"]
    cases = [
        Table(place, head, rows, ["", NUMBER, NUMBER])
        for place, rows in of_each_case(games).items()
    ]
    bounds = [f"{name}: {WHY[name]}" for name in NAMES]
    lines = [*lines_of(games, num_seeds), *bounds]
    part = render("arena/arena.html", lines=lines, standings=_of_standings(rows), cases=cases)
    return whole_page(title=f"Arena: {len(rows)} on suite {games.about['suite']}", parts=[part])


def head_across(answer: AcrossRules) -> list[str]:
    """The columns of `cells_across`."""
    columns = ("rank", "job time, % of LRU's", "hits")
    return ["entrant", *(f"{name}, {rules}" for rules in answer.standings for name in columns)]


def cells_across(answer: AcrossRules) -> list[list[str]]:
    """A row for each entrant, by its place under the first rules: its rank, job time and hits under
    each.
    """
    first, *others = (_three(rows) for rows in answer.standings.values())
    return [[name, *own, *_of_others(name, others)] for name, own in first.items()]


def _three(rows: Sequence[Standing]) -> dict[str, list[str]]:
    return {
        row.name: [
            BOUND if row.rank is None else str(row.rank),
            str(row.job),
            percent(row.hits),
        ]
        for row in rows
    }


def _of_others(name: str, others: Sequence[Mapping[str, Sequence[str]]]) -> list[str]:
    return [cell for rows in others for cell in rows[name]]


def page_across(answer: AcrossRules) -> str:
    """One page: the table of all rules, and the sentence."""
    head = head_across(answer)
    table = Table("Standings", head, cells_across(answer), ["", *[NUMBER] * (len(head) - 1)])
    part = render("arena/arena.html", lines=[answer.sentence], standings=table, cases=[])
    return whole_page(title=f"Arena: {' and '.join(answer.standings)}", parts=[part])


def _of_standings(standings: Sequence[Standing]) -> Table:
    """The table of the page, without columns in which nothing stands."""
    rows = cells_of(standings)
    filled = [place for place in range(len(HEAD)) if any(row[place] for row in rows)]
    head = [HEAD[place] for place in filled]
    classes = ["" if name in ("entrant", "note") else NUMBER for name in head]
    return Table("Standings", head, [[row[place] for place in filled] for row in rows], classes)
