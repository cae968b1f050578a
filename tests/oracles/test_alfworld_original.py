"""ALFWorld's own experts as oracles, and our explorer beside them.

Promises:
1. The hand-coded expert on our engine says what it says in the original engine, command for
   command, as it is shipped and repaired.
2. It is a value: asking twice, or going on from a student's record, gives the same commands, and
   nobody's random numbers move.
3. No filler unless it is asked for: a status says why there is no command.
4. The original's planner wins from where a messy student stands, within its budget or not at all.
5. Our explorer wins at least as many games within 50 steps as the repaired expert, in each type.
"""

from __future__ import annotations

import json
import random
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import gymnasium
import numpy as np
import pytest

import agent_envs
from agent_envs.alfworld import engine
from agent_envs.alfworld.games import GameSet
from agent_envs.alfworld.goals import won
from agent_envs.alfworld.model import Game, State, TaskType
from agent_envs.alfworld.original import experts
from agent_envs.alfworld.original.textworld_engine import TextWorldGame
from benchmarks.explorers import (
    EVERY,
    LIMIT,
    OURS,
    REPAIRED,
    SHIPPED,
    behind,
    compare,
    play,
    table,
)
from oracles import HistoryItem, Oracle, PlanStatus
from oracles.alfworld_original import OriginalHandCoded, OriginalPlanner
from oracles.alfworld_planner import ALFWorldPlanner
from oracles.branch import run
from tests.oracles.explored import intro
from tests.oracles.original_support import small_game
from tests.oracles.toy import House, Obj, Rec, view
from tests.support import ROOT, full_count, run_python

pytestmark = pytest.mark.reference
RESULTS = ROOT / "benchmarks" / "results" / "explorers.json"


@contextmanager
def global_draws(seed: int) -> Iterator[None]:
    """The global generator at the start of `seed`, and back where it was afterwards."""
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


# ------------------------------------------------------------------ beside the original


def chosen(games: GameSet, per_type: int) -> list[str]:
    by_type = {kind: list(games.task_ids("train", [kind])) for kind in TaskType}
    return [ids[7 * place] for place in range(per_type) for ids in by_type.values()]


def id_of(member: tarfile.TarInfo) -> str:
    """The task that a file of the archive belongs to."""
    return str(Path(member.name).parent).partition("/")[2]


@pytest.fixture(scope="module")
def tree(real_data: Path, real_games: GameSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The games of the lockstep as files, with what the original's expert reads beside them."""
    folder = tmp_path_factory.mktemp("games")
    wanted = chosen(real_games, 2)
    with tarfile.open(real_data / "alfworld_games.tar.xz") as archive:
        for member in archive:
            if id_of(member) in wanted:
                archive.extract(member, folder, filter="data")
    return folder / "json_2.1.1"


def ambiguous(game: Game, state: State) -> bool:
    """Whether the original's expert goes by the order of a set, which differs between processes."""
    inside = [mask & game.goal.objects for mask in map(state.contents.__getitem__, game.goal_recs)]
    return game.task_type is TaskType.TWO and sum(mask.bit_count() for mask in inside) > 1


def in_lockstep(path: Path, game: Game, repaired: bool, seed: int, limit: int) -> int:
    """Commands on which the original and ours agreed, up to a win or `limit`."""
    oracle = OriginalHandCoded(seed=seed, repaired=repaired, filler=True)
    state, trail = game.start, oracle.start(view(game, game.start), ())
    with TextWorldGame(path, expert=True) as real, global_draws(seed):
        agent = real._env._handcoded_expert
        if repaired:
            choose = agent.get_task_policy
            agent.get_task_policy = lambda params: experts._repaired(choose(params))
        reply = real.reset()
        for number in range(limit):
            decision, trail = oracle.act(trail, view(game, state), reply.observation)
            assert decision.action == reply.expert_action, (path, number)
            reply = real.step(str(reply.expert_action))
            state, text, _ = engine.step(game, state, str(decision.action))
            assert text == reply.observation
            if reply.won or ambiguous(game, state):
                return number + 1
    return limit


@pytest.mark.data
def test_says_what_the_original_says_in_its_own_engine(
    reference: None, real_games: GameSet, tree: Path
) -> None:
    """Full: 12 games, as shipped and repaired; else two things to place, once each way."""
    ids = chosen(real_games, 2)
    two = ids[list(TaskType).index(TaskType.TWO)]
    full = [(task_id, repaired) for task_id in ids for repaired in (True, False)]
    episodes = full if full_count(0, 1) else [(two, True), (two, False)]
    commands = 0
    for task_id, repaired in episodes:
        path = tree / task_id / "game.tw-pddl"
        commands += in_lockstep(path, real_games.load(task_id), repaired, 3, full_count(30, 80))
    assert commands >= full_count(20, 300)


@pytest.mark.data
def test_reads_the_goal_as_the_games_own_files_tell_it(
    reference: None, real_data: Path, real_games: GameSet
) -> None:
    checked = 0
    with tarfile.open(real_data / "alfworld_games.tar.xz") as archive:
        for member in archive:
            if not member.name.endswith("traj_data.json"):
                continue
            file = archive.extractfile(member)
            assert file is not None
            told = json.load(file)
            task_id = id_of(member)
            ours = experts.task_params(real_games.load(task_id))
            look = told["task_type"] == TaskType.LOOK
            assert ours["task_type"] == told["task_type"]
            for name in ("object_target", "toggle_target" if look else "parent_target"):
                assert ours[name] == told["pddl_params"][name].lower(), task_id
            checked += 1
            if checked == full_count(60, 634):
                break
    assert checked == full_count(60, 634)


# ------------------------------------------------------------------ a value


BOTH = pytest.mark.parametrize("filler", [False, True], ids=["statuses", "filler"])


@BOTH
def test_asking_twice_gives_the_same_and_moves_nothing(reference: None, filler: bool) -> None:
    from alfworld.agents.expert import handcoded_expert

    game = small_game(TaskType.TWO)
    before = random.getstate(), np.random.get_state()[1].tolist()
    first = [play_on(game, OriginalHandCoded(seed=5, filler=filler)) for _ in range(2)]
    assert first[0] == first[1]
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    assert handcoded_expert.random is random
    oracle = OriginalHandCoded(seed=5, filler=filler)
    state, trail, text = game.start, oracle.start(view(game, game.start), ()), intro(game)
    for command in first[0][:4]:
        asked = [oracle.act(trail, view(game, state), text) for _ in range(3)]
        assert {decision.action for decision, _ in asked} == {command}
        assert len({after.expert.draws for _, after in asked if after.expert}) == 1
        trail = asked[0][1]
        state, text, _ = engine.step(game, state, command)


def play_on(game: Game, oracle: OriginalHandCoded, limit: int = 60) -> list[str]:
    """The commands until it wins, stops or has given `limit`."""
    state, text, commands = game.start, intro(game), []
    trail = oracle.start(view(game, state), ())
    while len(commands) < limit and not won(game, state):
        decision, trail = oracle.act(trail, view(game, state), text)
        if decision.action is None:
            break
        commands.append(decision.action)
        state, text, _ = engine.step(game, state, decision.action)
    return commands


@BOTH
def test_goes_on_from_a_record_as_if_it_had_run_along(reference: None, filler: bool) -> None:
    game = small_game(TaskType.COOL)
    oracle = OriginalHandCoded(seed=2, filler=filler)
    commands = play_on(game, oracle)
    assert len(commands) > 5
    for cut in range(len(commands)):
        state, text, history = game.start, intro(game), []
        for command in commands[:cut]:
            following, reply, valid = engine.step(game, state, command)
            history.append(HistoryItem(text, command, valid))
            state, text = following, reply
        trail = oracle.start(view(game, state), tuple(history))
        decision, _ = oracle.act(trail, view(game, state), text)
        assert decision.action == commands[cut], cut


def test_seeds_differ_where_the_expert_draws(reference: None) -> None:
    game = House(
        TaskType.PICK,
        [Rec("Shelf", 1, ("Mug",)), Rec("Cabinet", 2, ("Mug",))],
        [Obj("Mug", (0,)) for _ in range(8)],
    ).game()
    taken = {tuple(play_on(game, OriginalHandCoded(seed=seed))) for seed in range(8)}
    assert len(taken) > 1


@pytest.mark.data
def test_plays_on_from_a_students_state_in_a_branch(reference: None, real_games: GameSet) -> None:
    env = gymnasium.make("SeroALFWorld-v0", data=real_games, split="train", max_steps=120)
    won_branches = 0
    for seed in range(6):
        observation, info = env.reset(seed=seed)
        rng, history = Random(seed), []
        for _ in range(4):
            command = rng.choice([c for c in info["admissible_actions"] if c.startswith("go")])
            before = observation
            observation, _, _, _, info = env.step(command)
            history.append(HistoryItem(before, command, info["command_valid"]))
        branch = run(
            agent_envs.fork(env),
            agent_envs.snapshot(env),
            OriginalHandCoded(),
            history=tuple(history),
        )
        won_branches += branch.success
    assert won_branches >= 4


# ------------------------------------------------------------------ statuses


def test_both_are_oracles(reference: None) -> None:
    for oracle in (OriginalHandCoded(), OriginalPlanner()):
        assert isinstance(oracle, Oracle)
        assert oracle.privileged


@pytest.mark.data
def test_a_status_where_the_shipped_expert_has_no_command(
    reference: None, real_games: GameSet
) -> None:
    """It believes that it still holds the first thing, and wants to put it down again."""
    ids = real_games.task_ids("train", [TaskType.TWO])[::10]
    details = []
    for task_id in ids:
        game = real_games.load(task_id)
        for repaired in (True, False):
            episode = play(game, OriginalHandCoded(repaired=repaired))
            if episode.steps is None:
                details.append((repaired, episode.why))
            shown = play(game, OriginalHandCoded(repaired=repaired, filler=True), cap=60)
            assert shown.steps is not None or "no win" in shown.why
    assert {repaired for repaired, _ in details} == {False}
    for _, why in details:
        assert why.startswith("unsupported: the expert says 'move ")
        assert why.endswith("which is not admissible")


def test_a_status_where_the_expert_breaks_off(reference: None) -> None:
    """It goes to the first microwave of a room that has none."""
    game = House(
        TaskType.HEAT,
        [Rec("Shelf", 1, ("Mug",)), Rec("Cabinet", 2, ("Mug",))],
        [Obj("Mug", (0,), ("pickupable", "heatable"))],
    ).game()
    episode = play(game, OriginalHandCoded())
    assert episode.why == "unsupported: the expert broke off: IndexError: list index out of range"


def test_a_status_after_so_many_answers(reference: None) -> None:
    game = small_game(TaskType.TWO)
    for filler in (False, True):
        episode = play(game, OriginalHandCoded(max_steps=3, filler=filler))
        assert episode.why == "timeout: the expert gives no more than 3 answers"


def test_a_status_where_it_cannot_be_asked(reference: None, real_data: Path) -> None:
    game = small_game(TaskType.PICK)
    oracle, planner = OriginalHandCoded(), OriginalPlanner()
    decision, _ = oracle.act(oracle.start(None, ()), None, "")  # type: ignore[arg-type]
    assert decision.status is PlanStatus.UNSUPPORTED
    assert "privileged()" in decision.detail
    assert planner.plan(None).status is PlanStatus.UNSUPPORTED  # type: ignore[arg-type]

    moved, _, valid = engine.step(game, game.start, f"go to {game.recs[0]}")
    assert valid
    trail = oracle.start(view(game, moved), ())
    assert "record" in oracle.act(trail, view(game, moved), "")[0].detail

    older = GameSet.from_path(real_data / "alfworld_games_old.tar.xz")
    old = older.load(older.task_ids()[0])
    for answer in (
        oracle.act(oracle.start(view(old), ()), view(old), intro(old))[0],
        planner.plan(view(old)),
    ):
        assert answer.status is PlanStatus.UNSUPPORTED
        assert "'put'" in answer.detail

    done = ALFWorldPlanner().plan(view(game)).actions
    state = game.start
    for command in done:
        state, _, _ = engine.step(game, state, command)
    trail = oracle.start(view(game), ())
    assert oracle.act(trail, view(game, state), "")[0].status is PlanStatus.ALREADY_DONE
    assert planner.plan(view(game, state)).status is PlanStatus.ALREADY_DONE


def test_missing_packages_are_named() -> None:
    code = """
import sys
import agent_envs.alfworld.original.packages as packages
packages.check_versions.__defaults__ = (lambda name: None if name == "alfworld" else "1",)
from oracles.alfworld_original import OriginalHandCoded, OriginalPlanner
from agent_envs.errors import MissingExtra
from tests.oracles.toy import view
from tests.oracles.rooms import open_house
assert "alfworld" not in sys.modules and "textworld" not in sys.modules
seen = view(open_house().game())
for ask in (lambda: OriginalHandCoded().start(seen, ()), lambda: OriginalPlanner().plan(seen)):
    try:
        ask()
    except MissingExtra as error:
        print("reference" in str(error))
"""
    assert run_python(code) == "True\nTrue\n"


# ------------------------------------------------------------------ the comparison


@pytest.mark.data
def test_our_explorer_wins_as_many_within_fifty_steps(reference: None, real_games: GameSet) -> None:
    """Full: the 360 train games of the test data with three seeds, as in docs/explorers.md."""
    ids = real_games.task_ids("train")[:: full_count(24, 1)]
    seeds = range(full_count(1, 3))
    by_player = compare(real_games, ids, seeds, full_count(120, 1000))
    assert behind(by_player) == {}
    every = {name: row[EVERY] for name, row in by_player.items()}
    assert every[OURS]["episodes"] == len(ids) * len(seeds)
    assert every[OURS]["won"] == every[REPAIRED]["won"] == every[OURS]["episodes"]
    two = {name: row[TaskType.TWO]["won_within_limit"] for name, row in by_player.items()}
    assert two[SHIPPED] < two[REPAIRED] <= two[OURS]
    assert every[OURS]["mean_steps"] < every[REPAIRED]["mean_steps"]
    if full_count(0, 1):
        assert by_player == json.loads(RESULTS.read_text("utf-8"))["players"]


def test_falling_behind_is_noticed() -> None:
    recorded = json.loads(RESULTS.read_text("utf-8"))["players"]
    assert behind(recorded) == {}
    worse = json.loads(json.dumps(recorded))
    worse[OURS][TaskType.COOL]["won_within_limit"] = 174
    theirs = worse[REPAIRED][TaskType.COOL]["won_within_limit"]
    assert behind(worse) == {TaskType.COOL: (174, theirs)}
    assert LIMIT == 50


def test_the_page_shows_the_recorded_figures() -> None:
    recorded = json.loads(RESULTS.read_text("utf-8"))
    page = (ROOT / "docs" / "explorers.md").read_text("utf-8")
    assert table(recorded["players"]) in page
    for name in (OURS, REPAIRED):
        every = recorded["players"][name][EVERY]
        assert every["won"] == every["episodes"]
        assert f"{every['most_steps']}, in {every['mean_steps']:.1f}" in page.replace(" steps", "")
