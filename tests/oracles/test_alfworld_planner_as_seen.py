"""The ALFWorld planner that knows what the student has seen and nothing else.

Promises:
1. It reads texts alone: two worlds that differ in unseen placements get the same decisions, to the
   byte, until something that differs is read.
2. Whoever has seen everything gets plans as short as those of the planner that knows everything.
3. In what was seen its plans are the shortest, they win, and nothing that it asks for is refused.
4. Where what was seen does not suffice it says so, with `unsupported` and never `unsolvable`.
5. It is the oracle of a branch from any root with a record.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest

import agent_envs
from agent_envs.alfworld import engine
from agent_envs.alfworld.games import GameSet
from agent_envs.alfworld.goals import won
from agent_envs.alfworld.households.generator import generate_game_set
from agent_envs.alfworld.households.spec import SMALL, STANDARD
from agent_envs.alfworld.model import Game, State, TaskType, bits
from oracles import Decision, History, HistoryItem, Oracle, Planner, PlanStatus
from oracles.alfworld_as_seen import believed, checked, seen_so_far
from oracles.alfworld_planner import ALFWorldPlanner, as_seen_planner
from oracles.alfworld_seen import Seen, fold
from oracles.branch import RootRecord, run
from tests.oracles.explored import INTRO, Blind, intro, messy_walk
from tests.oracles.rooms import make
from tests.oracles.toy import House, Obj, Rec, shortest_length, view
from tests.support import full_count

PLANNER = ALFWorldPlanner(None)
AS_SEEN = ALFWorldPlanner(None, as_seen=True)


@dataclass(frozen=True, slots=True)
class Followed:
    won: bool
    decisions: tuple[Decision, ...]
    """The last one is that which stopped it, unless it won."""
    observations: tuple[str, ...]
    """Before each decision."""
    refused: int


def follow(game: Game, state: State, text: str, history: History, limit: int = 60) -> Followed:
    """Let the as-seen planner play on from `state`; its view raises when it is read."""
    pursuit = AS_SEEN.start(Blind(), history)
    decisions, observations, refused = [], [], 0
    while not won(game, state) and len(decisions) < limit:
        decision, pursuit = AS_SEEN.act(pursuit, Blind(), text)
        decisions.append(decision)
        observations.append(text)
        if decision.action is None:
            break
        state, text, accepted = engine.step(game, state, decision.action)
        refused += not accepted
    return Followed(won(game, state), tuple(decisions), tuple(observations), refused)


def replayed(game: Game, start: State, commands: tuple[str, ...]) -> tuple[State, str, History]:
    """State, observation and record after `commands`."""
    state, text, history = start, intro(game), []
    for command in commands:
        following, reply, accepted = engine.step(game, state, command)
        history.append(HistoryItem(text, command, accepted))
        state, text = following, reply
    return state, text, tuple(history)


def tour(game: Game) -> tuple[str, ...]:
    """Commands that go everywhere, open everything and look about."""
    return tuple(
        command
        for rec in game.recs
        for command in (f"go to {rec}", f"open {rec}", f"examine {rec}", "look")
    )


# ------------------------------------------------------------------ how good its plans are


@pytest.mark.data
def test_who_has_seen_everything_plans_as_well_as_who_knows_everything(
    real_games: GameSet, real_data: Path
) -> None:
    older = GameSet.from_path(real_data / "alfworld_games_old.tar.xz")
    for games, step in ((real_games, full_count(20, 1)), (older, full_count(6, 1))):
        for task_id in games.task_ids()[::step]:
            game = games.load(task_id)
            state, text, history = replayed(game, game.start, tour(game))
            plan = AS_SEEN.plan(seen_so_far(history, text))
            best = PLANNER.plan(view(game, state))
            assert len(plan.actions) == len(best.actions), task_id
            followed = follow(game, state, text, history)
            assert followed.won, task_id
            assert followed.refused == 0
            # nothing is left to be looked up: it does what the plan says
            assert tuple(d.action for d in followed.decisions) == plan.actions


@pytest.mark.data
def test_goes_on_from_where_a_messy_student_stands(real_games: GameSet) -> None:
    """It wins wherever it plans; where it does not plan, what is missing was not seen."""
    outcomes: Counter[str] = Counter()
    for number, task_id in enumerate(real_games.task_ids()[:: full_count(15, 1)]):
        game = real_games.load(task_id)
        state, text, history = messy_walk(game, Random(number), 25)
        followed = follow(game, state, text, history)
        assert followed.refused == 0
        if followed.won:
            outcomes["won"] += 1
            assert len(followed.decisions) >= len(PLANNER.plan(view(game, state)).actions)
            continue
        last = followed.decisions[-1]
        assert (last.status, last.action) == (PlanStatus.UNSUPPORTED, None)
        seen = seen_so_far(history, text)
        kinds = {name.rpartition(" ")[0] for objs in seen.inside.values() for name in objs}
        wanted = {game.objs[i].rpartition(" ")[0] for i in bits(game.goal.objects)}
        if "no wanted object" in last.detail:
            assert not wanted & kinds
        elif "desk lamp" in last.detail:
            assert "desklamp" not in kinds
        else:
            assert "only one of the two" in last.detail or "in hand" in last.detail
        outcomes["too little seen"] += 1
    assert min(outcomes["won"], outcomes["too little seen"]) > sum(outcomes.values()) // 5


def test_plans_are_the_shortest_in_what_was_seen() -> None:
    """Beside breadth-first search in the believed world, where it has few enough states."""
    games = generate_game_set(9, {"train": full_count(60, 300)}, SMALL)
    checked_plans = 0
    for number, task_id in enumerate(games.task_ids()):
        game = games.load(task_id)
        _, text, history = messy_walk(game, Random(number), 15)
        seen = seen_so_far(history, text)
        plan = AS_SEEN.plan(seen)
        if plan.status is not PlanStatus.FOUND or len(plan.actions) > 6:
            continue
        world = believed(seen)
        assert shortest_length(world.game, world.state, 7) == len(plan.actions)
        checked_plans += 1
    assert checked_plans >= full_count(15, 75)


# ------------------------------------------------------------------ what it may know


def elsewhere(game: Game, seen: Seen, texts: str, rng: Random) -> State:
    """The start with every object that was never read of in another unseen receptacle."""
    unseen = [rec for rec, name in enumerate(game.recs) if name not in seen.looked]
    contents = list(game.start.contents)
    for rec in unseen:
        for obj in bits(game.start.contents[rec]):
            if f"{game.objs[obj]} " not in texts and f"{game.objs[obj]}." not in texts:
                contents[rec] &= ~(1 << obj)
                contents[rng.choice(unseen)] |= 1 << obj
    return game.start._replace(contents=tuple(contents))


def test_worlds_that_differ_in_unseen_placements_get_the_same_decisions() -> None:
    games = generate_game_set(6, {"train": full_count(40, 400)}, STANDARD)
    compared = moved = planned = told_apart = 0
    for number, task_id in enumerate(games.task_ids()):
        game, rng = games.load(task_id), Random(number)
        state, text, history = messy_walk(game, rng, rng.randint(0, 30))
        seen = seen_so_far(history, text)
        texts = " ".join(item.observation.replace(",", " ,") for item in history)
        start = elsewhere(game, seen, texts + " " + text.replace(",", " ,"), rng)
        there, same, record = replayed(game, start, tuple(item.action for item in history))
        assert (same, record) == (text, history)  # the student saw the same
        assert seen_so_far(record, same) == seen
        if won(game, there):  # the thing that was moved is where it is wanted
            continue
        compared += 1
        moved += there.contents != state.contents
        one, other = follow(game, state, text, history), follow(game, there, same, record)
        agree = 0
        for left, right in zip(one.observations, other.observations, strict=False):
            if left != right:
                break
            assert repr(one.decisions[agree]) == repr(other.decisions[agree])
            agree += 1
        assert agree >= 1
        planned += one.decisions[0].status is PlanStatus.FOUND
        # the one that knows everything does depend on what differs
        mine, theirs = (PLANNER.plan(view(game, at)) for at in (state, there))
        told_apart += mine != theirs
    assert compared > 0.7 * len(games)
    assert moved > 0.7 * compared
    assert planned > compared // 6
    assert told_apart > compared // 3


def test_branches_of_two_worlds_are_equal_to_the_byte() -> None:
    def house(pen_in: int, mug_in: int) -> House:
        recs = [
            Rec("Shelf", 1, ("Mug", "Pen")),
            Rec("Cabinet", 2, ("Mug",), openable=True),
            Rec("Drawer", 3, ("Mug", "Pen"), openable=True),
            Rec("Drawer", 4, ("Mug", "Pen"), openable=True),
        ]
        # the second mug has the lower number: the one on the shelf is "mug 2" in both
        return House(
            TaskType.PICK, recs, [Obj("Mug", (0,)), Obj("Mug", (mug_in,)), Obj("Pen", (pen_in,))]
        )

    def branch(pen_in: int, mug_in: int) -> tuple[str, ...]:
        env = make(house(pen_in, mug_in))
        observation, info = env.reset(seed=0)
        history = []
        for command in ("go to shelf 1", "dance", "go to cabinet 1"):
            before = observation
            observation, _, _, _, info = env.step(command)
            history.append(HistoryItem(before, command, info["command_valid"]))
        result = run(
            agent_envs.fork(env),
            agent_envs.snapshot(env),
            AS_SEEN,
            history=tuple(history),
            expected=RootRecord(observation, info["admissible_actions"]),
        )
        assert result.valid, result.detail
        assert result.success
        return tuple(map(repr, result.steps))

    assert branch(2, 3) == branch(3, 2) == branch(2, 2)
    assert len(branch(2, 3)) == 5  # go to, take, go to, open, move


def test_a_privileged_view_is_refused() -> None:
    assert not AS_SEEN.privileged
    assert isinstance(AS_SEEN, Oracle)
    assert isinstance(AS_SEEN, Planner)
    assert ALFWorldPlanner().privileged
    assert not as_seen_planner().privileged
    game = house_of(Obj("Mug", (0,))).game()
    refused = AS_SEEN.plan(view(game))
    assert (refused.status, refused.actions) == (PlanStatus.UNSUPPORTED, ())
    assert "seen_so_far" in refused.detail
    assert PLANNER.plan(Seen()).status is PlanStatus.UNSUPPORTED


# ------------------------------------------------------------------ what it says and looks up


def house_of(*objs: Obj) -> House:
    recs = [Rec("Shelf", 1, ("Mug", "Pen")), Rec("Cabinet", 2, ("Mug",), openable=True)]
    return House(TaskType.PICK, recs, list(objs))


def seen_of(game: Game, *commands: str) -> Seen:
    _, text, history = replayed(game, game.start, commands)
    return seen_so_far(history, text)


def test_unseen_is_unsupported_and_says_what_is_missing() -> None:
    game = house_of(Obj("Mug", (0,))).game()
    for commands in ((), ("go to cabinet 1",)):
        plan = AS_SEEN.plan(seen_of(game, *commands))
        assert (plan.status, plan.actions) == (PlanStatus.UNSUPPORTED, ())
        assert plan.detail == "no wanted object has been seen yet"
    assert AS_SEEN.plan(seen_of(game, "go to shelf 1")).status is PlanStatus.FOUND
    assert AS_SEEN.plan(Seen()).status is PlanStatus.UNSUPPORTED
    worded = replace(seen_of(game, "go to shelf 1"), sentence="Move the mug somewhere.")
    assert "not worded as usual" in AS_SEEN.plan(worded).detail


@pytest.mark.parametrize(
    ("task", "commands", "what"),
    [
        ("put two mug in cabinet.", ("On the shelf 1, you see a mug 1.",), "only one of the two"),
        ("look at mug under the desklamp.", ("On the shelf 1, you see a mug 1.",), "desk lamp"),
        ("put a mug in safe.", ("On the shelf 1, you see a mug 1.",), "wanted class is listed"),
        ("put a clean mug in cabinet.", ("On the shelf 1, you see a mug 1.",), "does not suffice"),
    ],
)
def test_what_is_missing(task: str, commands: tuple[str, ...], what: str) -> None:
    seen = fold(Seen(), None, INTRO.format(recs="a cabinet 1, and a shelf 1", task=task))
    for text in commands:
        seen = fold(seen, "go to shelf 1", f"You arrive at shelf 1. {text}")
    plan = AS_SEEN.plan(seen)
    assert plan.status is PlanStatus.UNSUPPORTED
    assert what in plan.detail


def test_hands_full_of_what_nothing_is_known_to_take() -> None:
    """True, but not proven by what was seen: never unsolvable."""
    game = house_of(Obj("Mug", (0,)), Obj("TeddyBear", (0,))).game()
    seen = seen_of(game, "go to shelf 1", "take teddybear 1 from shelf 1")
    # beds and the like take teddy bears, and there are none here
    plan = AS_SEEN.plan(seen)
    assert plan.status is PlanStatus.UNSUPPORTED
    assert "'teddybear 1', which is in hand" in plan.detail


def test_horizon_and_budget() -> None:
    seen = seen_of(house_of(Obj("Mug", (0,))).game(), "go to shelf 1")
    plan = AS_SEEN.plan(seen)
    assert len(plan.actions) == 4
    flagged = AS_SEEN.plan(seen, horizon=3)
    assert (flagged.status, flagged.actions) == (PlanStatus.OVER_BUDGET, plan.actions)
    assert AS_SEEN.plan(seen, budget_s=0.0).status is PlanStatus.TIMEOUT
    done = replace(seen, inside=type(seen.inside)({"cabinet 1": frozenset(("mug 1",))}))
    assert AS_SEEN.plan(done).status is PlanStatus.ALREADY_DONE


def test_looks_up_what_a_command_depends_on() -> None:
    recs = "a cabinet 1, a drawer 1, a fridge 1, and a sidetable 1"
    seen = fold(Seen(), None, INTRO.format(recs=recs, task="put some mug on cabinet."))
    here = replace(seen, here=("drawer 1",))
    assert checked(seen, "go to cabinet 1", 0.0) == "go to cabinet 1"  # nothing is in the middle
    # a cabinet and a drawer may stand at one spot, and `go to` would be refused there
    assert checked(here, "go to cabinet 1", 0.02) == "look"
    assert checked(here, "go to cabinet 1", 0.03) == "go to cabinet 1"
    apart = replace(here, apart=frozenset((frozenset(("drawer 1", "cabinet 1")),)))
    assert checked(apart, "go to cabinet 1", 0.0) == "go to cabinet 1"
    assert checked(here, "go to sidetable 1", 1.0) == "go to sidetable 1"
    surveyed = replace(here, surveyed=frozenset(here.here))
    assert checked(surveyed, "go to cabinet 1", 0.0) == "go to cabinet 1"
    # some cabinets have no door: only a look tells
    assert checked(here, "open cabinet 1", 0.02) == "examine cabinet 1"
    assert checked(here, "open fridge 1", 0.02) == "open fridge 1"
    shut = replace(here, closed=frozenset(("cabinet 1",)))
    assert checked(shut, "open cabinet 1", 0.02) == "open cabinet 1"
    assert checked(here, "move mug 1 to sidetable 1", 0.02) == "examine sidetable 1"
    assert checked(here, "put mug 1 in/on sidetable 1", 0.02) == "examine sidetable 1"
    known = fold(
        here, "go to sidetable 1", "You arrive at sidetable 1. On the sidetable 1, you see nothing."
    )
    assert checked(known, "move mug 1 to sidetable 1", 0.02) == "move mug 1 to sidetable 1"
    assert checked(replace(here, suspect="take mug 1 from drawer 1"), "look", 0.0) == "inventory"


def test_what_was_refused_is_not_tried_again() -> None:
    """The mug does not fit into the first cabinet, as it turns out; the second takes it."""
    recs = [
        Rec("Shelf", 1, ("Mug",)),
        Rec("Cabinet", 2, ("Mug",)),
        Rec("Cabinet", 3, ("Mug",)),
    ]
    game = House(TaskType.PICK, recs, [Obj("Mug", (0,))]).game()
    before = seen_of(game, "go to shelf 1", "take mug 1 from shelf 1", "go to cabinet 1")
    assert AS_SEEN.plan(before).actions == ("move mug 1 to cabinet 1",)
    after = fold(before, "move mug 1 to cabinet 1", "Nothing happens.")
    # most cabinets have doors, and this one has not been seen
    other = ("go to cabinet 2", "open cabinet 2", "move mug 1 to cabinet 2")
    assert AS_SEEN.plan(after).actions == other
    there = fold(
        after, "go to cabinet 2", "You arrive at cabinet 2. On the cabinet 2, you see nothing."
    )
    assert AS_SEEN.plan(there).actions == ("move mug 1 to cabinet 2",)
    lifted = seen_of(game, "go to shelf 1")
    lifted = replace(lifted, futile=frozenset(("take mug 1 from shelf 1",)))
    assert AS_SEEN.plan(lifted).status is PlanStatus.UNSUPPORTED
