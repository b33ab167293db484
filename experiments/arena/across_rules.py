"""The same entrants under the rules of several systems: whether their rank changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from testbed.experiments.arena.arena_bounds import LRU, NAMES
from testbed.experiments.arena.games import Games
from testbed.experiments.arena.standings import Cells, Standing, is_faster, logs_of, standings


@dataclass(frozen=True)
class AcrossRules:
    """Standings on the workloads and of the entrants that all systems have.

    standings: by system. pairs: two ranked entrants with the same resources. turned: pairs that
    separate under two systems, in opposite orders. alike: pairs that separate under all systems in
    one order. once: pairs that separate under some systems only.
    """

    standings: Mapping[str, Sequence[Standing]]
    pairs: int
    turned: Sequence[tuple[str, str]]
    alike: int
    once: int

    @property
    def sentence(self) -> str:
        """The answer, with the numbers that it rests on."""
        systems = " and ".join(self.standings)
        turned = ", ".join(f"{name} and {other}" for name, other in self.turned)
        answer = f"changes for {turned}" if turned else "does not change"
        return (
            f"Rank under {systems}: {answer}; of {self.pairs} pairs of entrants {self.alike} "
            f"separate in the same order under all, {self.once} under some only, "
            f"{len(self.turned)} in opposite orders."
        )


def across(games: Mapping[str, Games]) -> AcrossRules:
    """Compare games of one suite, by the name of their rules."""
    played = _shared(games)
    resources = {
        name: entrant.resources
        for some in games.values()
        for name, entrant in some.entrants.items()
    }
    ranked = [name for name in next(iter(played.values())) if name not in NAMES]
    pairs = [pair for pair in combinations(ranked, 2) if resources[pair[0]] == resources[pair[1]]]
    signs = {pair: [_sign(cells, *pair) for cells in played.values()] for pair in pairs}
    return AcrossRules(
        standings={rules: standings(cells, resources) for rules, cells in played.items()},
        pairs=len(pairs),
        turned=[pair for pair, own in signs.items() if {-1, 1} <= {*own}],
        alike=sum({*own} in ({1}, {-1}) for own in signs.values()),
        once=sum({*own} in ({0, 1}, {0, -1}) for own in signs.values()),
    )


def _shared(games: Mapping[str, Games]) -> dict[str, dict[str, Cells]]:
    """The cells of the entrants and conditions that all games have."""
    of_lru = [{key[0] for key in some.rows[LRU]} for some in games.values()]
    places = set.intersection(*of_lru)
    names = [name for name in next(iter(games.values())).rows if _in_all(name, games)]
    return {
        rules: {
            name: {key: row for key, row in some.rows[name].items() if key[0] in places}
            for name in names
        }
        for rules, some in games.items()
    }


def _in_all(name: str, games: Mapping[str, Games]) -> bool:
    return all(name in some.rows for some in games.values())


def _sign(cells: Mapping[str, Cells], first: str, second: str) -> int:
    """1 if the first is faster, -1 if the second is, 0 if they do not separate."""
    logs = [logs_of(cells[name], cells[LRU]) for name in (first, second)]
    return is_faster(*logs) - is_faster(*logs[::-1])
