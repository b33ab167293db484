"""The arena: bounds beside entrants, ranks if intervals separate, limits, and verification."""

import json
from dataclasses import replace
from functools import cache

import pytest
from counted_calls import calls_of
from refusals import refuses

import testbed
from testbed.core.errors import AnswerIsNo, InputError
from testbed.experiments.arena import games as arena_games
from testbed.experiments.arena.across_rules import across
from testbed.experiments.arena.arena_bounds import (
    BELADY,
    BOUNDS,
    INFINITE,
    LRU,
    NOTHING,
    RandomOrder,
)
from testbed.experiments.arena.arena_cell import PLAIN, conditions_of, row_of, row_of_run, words_of
from testbed.experiments.arena.arena_table import cells_of, page_of, ranked
from testbed.experiments.arena.entrants import entrant_of, values_of
from testbed.experiments.arena.games import admitted, play
from testbed.experiments.arena.isolated import Failure, isolated
from testbed.experiments.arena.results import columns_of, differences, read, write
from testbed.experiments.arena.rules import Rules
from testbed.experiments.arena.standings import standings
from testbed.experiments.arena.suites import HARD, Case, Suite, suite_of
from testbed.experiments.runs.compose import configured
from testbed.memory.prefix_cache.eviction.lru import Lru
from testbed.run.machine import make_pool
from testbed.run.simulate import run_setup

RULES = Rules("vllm-v1")
SCAN = Case("scan", (f"trace={HARD}Scan",), num_requests=60)
LOOP = Case("loop", (f"trace={HARD}Loop", "trace.num_stories=20"), num_requests=60, pools=(0.98,))
TINY = Suite("sprint", (SCAN,), pools=(0.5,), loads=(0.8,), seeds=(0, 1))
ONE = replace(TINY, seeds=(0,))


def in_turn(calls):
    return [call() for call in calls]


def called(call, *arguments, limit_s):
    return call(*arguments)


measured = cache(arena_games.measure)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """A folder for the rows of all games, of which some are the same."""
    return tmp_path_factory.mktemp("rows")


@pytest.fixture(scope="module")
def play_here(rows):
    """Play in this process, where a workload is measured once: parts that ship need no process of
    their own.
    """

    def call(names, suite, rules=RULES):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(arena_games, "isolated", called)
            patch.setattr(arena_games, "measure", measured)
            return play(names, suite, rules, rows, in_turn)

    return call


@pytest.fixture(scope="module")
def games(play_here):
    return play_here(["lfu"], TINY)


@pytest.fixture(scope="module")
def played(rows, play_here):
    """A folder of rows, and the games that wrote them."""
    return rows, play_here(["lfu"], ONE)


def hits(games, name):
    return [row.hits for row in games.rows[name].values()]


def test_bounds_stand_beside_the_entrants(games):
    assert not games.out
    assert set(hits(games, NOTHING)) == {0.0}
    for order in ("lru", "lfu", "random"):
        for own, most in zip(hits(games, order), hits(games, BELADY), strict=True):
            assert own <= most
    for own, most in zip(hits(games, LRU), hits(games, INFINITE), strict=True):
        assert own <= most


def test_lru_finds_little_in_a_loop_that_is_larger_than_the_pool():
    """A request that overtakes another one in the queue is all that it finds."""
    (condition,) = conditions_of(TINY, LOOP, RULES)
    lru, belady = (
        [row_of(condition, bound, RULES, seed).hits for seed in TINY.seeds]
        for bound in BOUNDS
        if bound.name in (LRU, BELADY)
    )
    assert max(lru) < 0.15
    assert min(belady) > 0.3


def test_a_rank_counts_those_that_are_faster_beyond_doubt(games):
    by_name = {standing.name: standing for standing in standings(games.rows)}
    assert by_name[LRU].job.mean == pytest.approx(100)
    assert by_name[LRU].rank is None
    assert by_name["lfu"].rank in (1, 2)
    assert by_name[BELADY].way == pytest.approx(1)
    twin = standings({**games.rows, "copy": games.rows["lfu"]})
    ranks = {standing.name: standing.rank for standing in twin}
    assert ranks["copy"] == ranks["lfu"]


def test_rows_that_are_done_are_read(played, play_here):
    folder, first = played
    times = {path: path.stat().st_mtime_ns for path in folder.glob("*.json")}
    again = play_here(["lfu"], ONE)
    assert again.rows == first.rows
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*.json")} == times


def test_random_victims_keep_the_contract():
    assert testbed.check(RandomOrder) is None


def test_the_column_of_lru_makes_the_calls_of_a_plain_run(monkeypatch):
    from testbed.experiments.arena import arena_cell
    from testbed.run.build import build

    (condition, *_) = conditions_of(TINY, SCAN, RULES)
    config = configured(words_of(condition, PLAIN, RULES, 0))
    plain, own = [], []
    run_setup(build(config))  # what is made once in a process
    setup = build(config)
    plain.append(calls_of(lambda: run_setup(setup)))

    def counted(setup):
        own.append(calls_of(lambda: results.append(run_setup(setup))))
        return results[-1]

    results = []
    monkeypatch.setattr(arena_cell, "run_setup", counted)
    row_of_run(config)
    assert own == plain


@pytest.fixture(scope="module")
def cheap(tmp_path_factory):
    """The condition of one short workload."""
    return conditions_of(ONE, SCAN, RULES)[0]


OF_A_TIER = ["store=write_back", "store=on_reuse,num_hits=2", "load=never", "vllm_offloading"]
OF_EVERY_KIND = ["separate", "prefix_aware", *OF_A_TIER, "radix", "lfu"]


@pytest.fixture(scope="module")
def of_every_kind(play_here):
    """Games of entrants of every kind."""
    games = play_here(OF_EVERY_KIND, ONE)
    assert not games.out
    return games


def test_rules_of_tiers_play_beside_others_with_a_tier(of_every_kind):
    games = of_every_kind
    resources = {name: entrant.resources for name, entrant in games.entrants.items()}
    ranks = {row.name: row.rank for row in standings(games.rows, resources)}
    assert [name for name, had in resources.items() if had == "DRAM tier"] == OF_A_TIER
    assert resources["lfu"] == ""
    assert {ranks[name] for name in (*OF_A_TIER, "lfu")} == {1}  # one seed separates nothing
    (never,), (write_back,) = (games.rows[name].values() for name in ("load=never", OF_A_TIER[0]))
    assert never.hits == next(iter(games.rows[LRU].values())).hits < write_back.hits


def test_entrants_of_every_kind_are_in_table_csv_json_and_page(of_every_kind, tmp_path):
    write(tmp_path / "arena.json", of_every_kind)
    rows = ranked(of_every_kind)
    shown = {
        "table": [cells[1] for cells in cells_of(rows)],
        "csv": columns_of(of_every_kind)["entrant"],
        "json": [row["entrant"] for row in read(tmp_path / "arena.json")["rows"]],
        "page": page_of(of_every_kind, rows, 1),
    }
    for place, content in shown.items():
        assert [name for name in OF_EVERY_KIND if name not in content] == [], place


TLRU = "radix,radix_eviction_policy=tlru,radix_eviction_policy_config={threshold:64}"


@pytest.mark.parametrize("name", ["gdsf", "lirs", "two_queues", "w_tiny_lfu", TLRU])
def test_orders_play_under_sglang_s_rules(name, cheap):
    row = row_of(cheap, entrant_of(name), Rules("sglang"), 0)
    assert row.rejected == 0
    assert row.hits > 0


@pytest.mark.parametrize("rules", [RULES, Rules("sglang")])
def test_a_policy_without_blocks_has_the_bytes_of_the_others_pool(cheap, rules):
    pools = [
        make_pool(configured(words_of(cheap, entrant_of(name), rules, 0)))
        for name in ("example_policy:Slabs", "policy=contiguous_max")
    ]
    assert pools[0].num_slots == pools[1].num_slots


@pytest.mark.usefixtures("four_requests")
def test_the_example_policy_plays_and_a_slow_one_learns_why(cheap, monkeypatch, tmp_path):
    monkeypatch.setattr(arena_games, "EXAMPLES", 5)  # of a policy that keeps the contract
    entrant = admitted("example_policy:Slabs", RULES)
    assert row_of(cheap, entrant, RULES, 0).job_s > 0
    monkeypatch.setattr(arena_games, "CELL_S", 1e-3)
    answer = arena_games.CellJob(tmp_path, cheap, entrant, RULES, 0)()
    assert "guaranteed_steps" in answer.reason


def test_parameters_go_with_an_entrant(cheap):
    entrant = entrant_of("lru_k,k=3")
    assert values_of(entrant) == {"k": 3}
    assert "policy.eviction.k=3" in words_of(cheap, entrant, RULES, 0)
    answer = isolated(admitted, "lru_k,kk=3", RULES, limit_s=60)
    assert "kk" in answer.reason


@pytest.mark.parametrize(
    "names",
    [
        ["lfu", "lru_k,kk=3"],
        ["lfu", "radix,foo=3,radix_eviction_policy_config={threshold:9}"],
        ["example_policy:Slabs,foo=3"],
    ],
)
def test_an_unknown_parameter_is_wrong_input(names):
    """Of a part that ships before any game, of a class if nothing else plays."""
    with pytest.raises(InputError) as refusal:
        arena_games.admit(names, RULES)
    assert refusal.value.key == names[-1]
    assert not isinstance(refusal.value, AnswerIsNo)


def test_a_table_of_values_is_one_parameter():
    name = "radix,radix_eviction_policy=tlru,radix_eviction_policy_config={threshold:9,a:[1,2]}"
    expected = {"threshold": 9, "a": [1, 2]}
    assert values_of(entrant_of(name))["radix_eviction_policy_config"] == expected


def test_an_oracle_that_ships_does_not_play():
    assert (
        "true output lengths" in isolated(admitted, "contiguous_oracle", RULES, limit_s=60).reason
    )


def test_the_same_orders_play_under_sglang_s_rules(played, play_here):
    rules = Rules("sglang")
    own = play_here(["lfu"], ONE, rules)
    assert not own.out
    found = across({RULES.name: played[1], "sglang": own})
    assert {name for rows in found.standings.values() for name in [row.name for row in rows]} == {
        *own.rows
    }
    assert (found.pairs, found.turned) == (0, [])
    assert "does not change" in found.sentence
    assert not rules.serves(suite_of("quick").cases[4])  # several sequences of one request
    assert rules.left_out(suite_of("quick")) == ("samples",)


def test_a_pair_in_opposite_orders_is_named(games):
    rows = {**games.rows, "slow": {}, "fast": {}}
    for name, factor in (("slow", 1.2), ("fast", 0.8)):
        rows[name] = {
            key: replace(row, job_s=factor * (1 + 0.01 * key[1]) * row.job_s)
            for key, row in games.rows[LRU].items()
        }
    entrants = {**games.entrants, "slow": games.entrants["lfu"], "fast": games.entrants["lfu"]}
    one = replace(games, rows=rows, entrants=entrants)
    other = replace(one, rows={**rows, "slow": rows["fast"], "fast": rows["slow"]})
    assert ("slow", "fast") in across({"a": one, "b": other}).turned
    assert across({"a": one, "b": one}).turned == []


CHEATS = {
    "TwiceThePool": "contract",
    "RaisesAtOnce": "at once",
    "TakesMemory": "emory",
    "Exits": "exit",
    "NamesNoVictim": "contract",
    "IsNoPolicy": "none of",
    "KnowsAnswers": "clause 18",
    "ReadsLengths": "future",
    "ReadsPrompts": "future",
}


@pytest.mark.parametrize(("name", "why"), CHEATS.items())
def test_what_breaks_its_contract_does_not_play(name, why):
    answer = isolated(admitted, f"arena_cheats:{name}", RULES, limit_s=60)
    assert isinstance(answer, Failure)
    assert why in answer.reason


def test_a_plug_in_that_hangs_costs_its_own_row(cheap):
    entrant = entrant_of("arena_cheats:Sleeps")
    answer = isolated(row_of, cheap, entrant, RULES, 0, limit_s=0.5)
    assert "within 0.5 s" in answer.reason


@pytest.mark.parametrize("name", ["RaisesAtTheEnd", "LearnsFromRuns"])
def test_what_comes_after_a_run_changes_no_row(played, cheap, name):
    (lru,) = played[1].rows[LRU].values()
    row = isolated(row_of, cheap, entrant_of(f"arena_cheats:{name}"), RULES, 0, limit_s=60)
    assert (row.job_s, row.hits) == (lru.job_s, lru.hits)


def test_the_others_play_without_one_that_fails(played):
    games = play(["lfu", "arena_cheats:IsNoPolicy"], ONE, RULES, played[0], in_turn)
    assert [*games.out] == ["arena_cheats:IsNoPolicy"]
    assert "lfu" in games.rows


@pytest.fixture
def stored(played, tmp_path):
    write(tmp_path / "arena.json", played[1])
    return read(tmp_path / "arena.json")


@pytest.fixture
def found(rows, monkeypatch):
    """The differences that a verification finds, which reads the rows that were played."""
    monkeypatch.setattr(arena_games, "isolated", called)
    monkeypatch.setattr("testbed.experiments.arena.results.measure", measured)

    def call(content, suite=ONE, sample=None, **options):
        return differences(content, suite, rows, in_turn, sample, **options)

    return call


def test_a_result_comes_out_again(games, tmp_path):
    write(tmp_path / "arena.json", games)
    content = read(tmp_path / "arena.json")
    assert differences(content, TINY, tmp_path / "again", in_turn, sample=4) == []
    assert len([*(tmp_path / "again").iterdir()]) == 4


def test_a_forged_row_is_found(stored, found):
    row = next(row for row in stored["rows"] if row["entrant"] == "lfu")
    row["job_s"] *= 0.9
    (line,) = found(stored)
    assert "job_s" in line
    assert "lfu" in line


def test_a_changed_seed_version_or_suite_is_found(stored, found):
    moved = json.loads(json.dumps(stored))
    moved["rows"][0]["seed"] = 7
    assert "not of the suite" in found(moved)[0]
    older = {**stored, "about": {**stored["about"], "simulator": "0"}}
    assert found(older)[0].startswith("simulator")
    assert found(older, sample=1, any_version=True) == []
    assert found(stored, replace(ONE, pools=(0.6,)))[0].startswith("suite_hash")


def test_a_row_that_is_left_out_or_doubled_is_found(stored, found):
    """Also beside a sample, which could have drawn others."""
    rows = stored["rows"]
    (missing,) = found({**stored, "rows": rows[1:]}, sample=1)
    assert rows[0]["entrant"] in missing
    assert "missing" in missing
    assert len(found({**stored, "rows": []}, sample=1)) == len(rows)
    (doubled,) = found({**stored, "rows": [*rows, rows[0]]}, sample=1)
    assert "twice" in doubled


@pytest.mark.parametrize("part", ["about", "entrants", "out", "rows"])
def test_a_file_without_a_part_of_a_result_is_refused(stored, tmp_path, part):
    for odd in ([{}], "x", None):
        (tmp_path / "odd.json").write_text(json.dumps({**stored, part: odd}))
        refuses("is no result of the arena", read, tmp_path / "odd.json")


@pytest.mark.parametrize(
    "swapped", [{"words": ["eviction@policy.eviction=belady"]}, {"source": "of another file"}]
)
def test_a_swapped_entrant_is_found(stored, found, swapped):
    stored["entrants"]["lfu"] |= swapped
    assert "lfu" in found(stored)[0]


def test_a_score_is_beside_lru_and_deterministic(monkeypatch):
    from testbed.experiments.arena import suites

    monkeypatch.setitem(suites.SUITES, "tiny", replace(ONE, name="tiny"))
    own = testbed.arena.score(Lru, suite="tiny")
    assert float(own) == pytest.approx(100)
    assert own == testbed.arena.score((Lru, {}), suite="tiny")
    with pytest.raises(InputError, match="no class of"):
        testbed.arena.score("lru", suite="tiny")


def test_unknown_suites_and_entrants_are_refused(testbed):
    assert "quick" in testbed.refused("arena", "lru_k", "--suite", "quik")
    assert "mean sieve" in testbed.refused("arena", "lru_k", "siev,k=2")  # before lru_k's check
    assert "no file" in testbed.refused("arena", "policy=nix.py:Nix")
    with pytest.raises(InputError, match="no part"):
        entrant_of("lfru")
    with pytest.raises(InputError, match="--suite"):
        suite_of("none")


def test_without_an_entrant_that_may_play_no_bound_does(tmp_path, monkeypatch):
    broken = Failure("breaks clause 3")
    monkeypatch.setattr(arena_games, "isolated", lambda *call, limit_s: broken)
    with pytest.raises(AnswerIsNo, match="lfu: breaks clause 3"):
        play(["lfu"], ONE, RULES, tmp_path, in_turn)
